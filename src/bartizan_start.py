"""The start of the console command `bartizan`, before the package and its dependencies are imported."""

import signal


def main() -> int:
    """Run the command line; Ctrl-C while Python still imports ends the process without a traceback."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from bartizan.cli import main as run

    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, handler)
    return run()
