"""Prints the skipped tests of a JUnit report and fails when one is not on the allow-list.

Usage: python scripts/check_skips.py REPORT.xml ALLOWED. ALLOWED holds one test id prefix a line
(module.path::test_name), with a reason after a #.
"""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def skipped_tests(report: Path) -> dict[str, str]:
    """Test id -> reason of every skipped test."""
    found = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        skip = case.find("skipped")
        if skip is not None and skip.get("type") != "pytest.xfail":
            found[f"{case.get('classname')}::{case.get('name')}"] = skip.get("message", "")
    return found


def allowed_prefixes(path: Path) -> list[str]:
    """Prefixes of the allow-list."""
    lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
    return [line for line in lines if line]


def main() -> int:
    """Runs the command line."""
    report, allowed = Path(sys.argv[1]), allowed_prefixes(Path(sys.argv[2]))
    skipped = skipped_tests(report)
    refused = [name for name in skipped if not name.startswith(tuple(allowed or ["\0"]))]
    print(f"skipped tests: {len(skipped)}")
    for name, reason in sorted(skipped.items()):
        print(f"  {name}: {reason}{'  <-- NOT ON THE ALLOW-LIST' if name in refused else ''}")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
