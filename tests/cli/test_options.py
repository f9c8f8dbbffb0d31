"""Where the value of an option comes from, and how options travel to a child."""

from pathlib import Path

import pytest
import typer

from tenon.cli.commands import takes_options
from tenon.cli.failures import CommandError
from tenon.cli.options import ServeOptions, ServiceOptions, option_variables, to_arguments
from tenon.cli.values import format_size, parse_size


def resolve(arguments: list[str]) -> ServeOptions:
    """What a command of ServeOptions gets."""
    seen: list[ServeOptions] = []
    app = typer.Typer()

    @app.command()
    @takes_options(ServeOptions)
    def command(options: ServeOptions) -> None:
        seen.append(options)

    typer.main.get_command(app).main(arguments, prog_name="test", standalone_mode=False)
    (options,) = seen
    return options


@pytest.mark.parametrize(
    ("flag", "variable", "in_file", "expected"),
    [
        (None, None, None, 8000),
        (None, None, 8001, 8001),
        (None, 8002, None, 8002),
        (None, 8002, 8001, 8002),
        (8003, None, None, 8003),
        (8003, None, 8001, 8003),
        (8003, 8002, None, 8003),
        (8003, 8002, 8001, 8003),
    ],
)
def test_a_flag_beats_the_variable_beats_the_file_beats_the_default(
    flag: int | None,
    variable: int | None,
    in_file: int | None,
    expected: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = []
    if in_file is not None:
        (tmp_path / "tenon.toml").write_text(f"http-port = {in_file}\n")
        arguments += ["--config", str(tmp_path / "tenon.toml")]
    if variable is not None:
        monkeypatch.setenv("TENON_HTTP_PORT", str(variable))
    if flag is not None:
        arguments += ["--http-port", str(flag)]
    assert resolve(arguments).http_port == expected


def test_the_file_may_name_the_model_and_is_checked_like_flags(tmp_path: Path) -> None:
    path = tmp_path / "tenon.toml"
    path.write_text('model = "other"\nkv_cache_memory = "2GiB"\nmax_num_seqs = 3\n')
    options = resolve(["--config", str(path)])
    assert (options.model, options.max_num_seqs) == ("other", 3)
    assert options.kv_cache_memory == str(2 * 1024**3)
    path.write_text('kv_cache_memory = "much"\n')
    with pytest.raises(typer.BadParameter, match="'much' is not a size"):
        resolve(["--config", str(path)])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("http_prot = 1\n", "unknown keys http_prot"),
        ("[service]\nhost = 'x'\n", "unknown keys service"),
        ("http_port = [1]\n", "http_port must be a text or a number"),
        ("http_port = true\n", "http_port must be a text or a number"),
        ("http_port 1\n", "is not TOML"),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_name(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "tenon.toml"
    path.write_text(text)
    with pytest.raises(CommandError, match=says):
        resolve(["--config", str(path)])


def test_options_survive_the_way_to_a_child() -> None:
    options = ServiceOptions(
        model="-odd name",
        grpc_port=0,
        metrics_port="off",
        kv_cache_memory="1048576",
        drain_grace=1.5,
    )
    seen: list[ServiceOptions] = []
    app = typer.Typer()

    @app.command()
    @takes_options(ServiceOptions)
    def command(options: ServiceOptions) -> None:
        seen.append(options)

    arguments = to_arguments(options)
    typer.main.get_command(app).main(arguments, prog_name="test", standalone_mode=False)
    assert seen == [options]


def test_every_option_has_a_variable_that_children_do_not_inherit() -> None:
    assert {"TENON_CONFIG", "TENON_HTTP_PORT", "TENON_SERVICE_TARGET"} <= option_variables()


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("2GiB", 2 * 1024**3),
        ("2gib", 2 * 1024**3),
        ("1.5G", 1024**3 * 3 // 2),
        ("512 MB", 512 * 10**6),
        ("1KiB", 1024),
        ("64k", 65536),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "0", "2Q", "1iB", "1e9", "1 2", "0x10"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="size"):
        parse_size(text)


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (98362432, "98.4 MB"), (2e12, "2000.0 GB")])
def test_sizes_are_shown_short(size: float, text: str) -> None:
    assert format_size(size) == text
