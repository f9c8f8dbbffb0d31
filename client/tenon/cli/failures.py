"""How the command line fails: one clear line on stderr and an exit code, never a traceback."""

BAD_INPUT = 2  # something that whoever typed the command can put right
FAILED = 1
INTERRUPTED = 130


class CommandError(Exception):
    """A command cannot go on. The message is one line that says what to do."""

    def __init__(self, message: str, exit_code: int = BAD_INPUT) -> None:
        super().__init__(message)
        self.exit_code = exit_code
