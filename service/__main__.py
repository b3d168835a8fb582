"""`python -m service`: arguments to settings to trio.run to exit code, and nothing else."""

import sys

try:
    import click

    from service.cli import cli
    from service.errors import MailroomError
except KeyboardInterrupt:
    sys.exit(130)


def main() -> None:
    """Exit 0 done, 1 failed with one line on standard error, 2 wrong usage."""
    try:
        code = cli.main(prog_name="python -m service", standalone_mode=False)
    except click.exceptions.Exit as ended:
        code = ended.exit_code
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = 130
    except MailroomError as error:
        code = _fail(error)
    except BaseExceptionGroup as group:  # what a nursery makes of one error
        known = group.subgroup(MailroomError)
        if known is None:
            raise
        code = _fail(_first(known))
    sys.exit(code)


def _first(group: BaseExceptionGroup[MailroomError]) -> MailroomError:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def _fail(error: MailroomError) -> int:
    hint = f" ({error.hint})" if error.hint else ""
    click.echo(f"mailroom: {error}{hint}", err=True)
    return 1


if __name__ == "__main__":
    main()
