"""Prints a script that completes gdrpy's commands, their options, the values of options,
and the names of the broker's regions. The shell reads it when it starts.

examples:
  gdrpy completion bash > ~/.local/share/bash-completion/completions/gdrpy
  gdrpy completion zsh > ~/.zfunc/_gdrpy       # with ~/.zfunc in $fpath, before compinit
  gdrpy completion fish > ~/.config/fish/completions/gdrpy.fish

exit status:
  0  it was printed
  2  wrong usage
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from gdrpy.cli import COMMANDS, GROUPS, command_parser
from gdrpy.cli.exits import OK
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import Output

#: Prints the names of regions, one a line. They are never expanded: any user may choose them.
_NAMES = r"""gdrpy ls --json 2>/dev/null | sed -n 's/.*"name": "\([^"]*\)".*/\1/p'"""

_BASH = r"""# bash completion of gdrpy, made by: gdrpy completion bash
_gdrpy() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} words= one
    if ((COMP_CWORD == 1)); then
        words=$'@commands@'
    else
        case "${COMP_WORDS[1]} $word" in
        @words@
        @named@) words=$(@names@) ;;
        esac
        case "${COMP_WORDS[1]} $before" in
        @values@
        @free@) words= ;;
        esac
    fi
    COMPREPLY=()
    while IFS= read -r one; do
        [[ -n $one && $one == "$word"* ]] && COMPREPLY+=("$(printf %q "$one")")
    done <<<"$words"
}
complete -o default -F _gdrpy gdrpy
"""

_ZSH = r"""#compdef gdrpy
# zsh completion of gdrpy, made by: gdrpy completion zsh
_gdrpy() {
    local -a found
    if ((CURRENT == 2)); then
        found=(@commands@)
        _describe command found
        return
    fi
    case "$words[2] $words[CURRENT-1]" in
    @values@
    @free@) _files; return ;;
    esac
    case "$words[2] $words[CURRENT]" in
    @words@
    @named@) compadd -- ${(f)"$(@names@)"} ;;
    esac
    _files
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _gdrpy "$@"
else
    compdef _gdrpy gdrpy
fi
"""


@dataclass(frozen=True)
class _Command:
    """A command: its options with what they are for, and what can follow them and it."""

    name: str
    options: dict[str, str]
    values: dict[str, tuple[str, ...]]
    names: bool
    words: tuple[str, ...]


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("shell", choices=_SCRIPTS, metavar="SHELL", help=", ".join(_SCRIPTS))


def run(args: argparse.Namespace, output: Output) -> int:
    script = _SCRIPTS[args.shell]([_command(name) for name in COMMANDS])
    if not args.json:
        output.text(script.rstrip("\n"))
    output.finish({"shell": args.shell, "script": script})
    return OK


def _command(name: str) -> _Command:
    actions = command_parser(name)._actions
    options = [action for action in actions if action.option_strings]
    arguments = [action for action in actions if not action.option_strings]
    return _Command(
        name,
        {one.option_strings[-1]: re.split(r" \(|: |; ", one.help or "")[0] for one in options},
        {name: _choices(one) for one in options if one.nargs != 0 for name in one.option_strings},
        any(one.metavar == "NAME" for one in arguments),
        tuple(word for one in arguments for word in _choices(one)),
    )


def _choices(action: argparse.Action) -> tuple[str, ...]:
    return tuple(map(str, action.choices or ()))


def _abouts() -> Iterator[tuple[str, str]]:
    """The commands, and a line on each."""
    for group in GROUPS.values():
        for module, about in group.items():
            yield module.rpartition(".")[2], about


def _filled(script: str, indent: int, **parts: Iterable[str]) -> str:
    """A script with its cases, a line for each, and its other parts."""
    for name, lines in parts.items():
        between = "\n" + " " * indent if name in ("values", "words") else " "
        script = script.replace(f"@{name}@", between.join(lines))
    return script


def _values(commands: list[_Command]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """A pattern of each option whose values are known, and the values."""
    for one in commands:
        for option, words in one.values.items():
            if words:
                yield f"'{one.name} {option}'", words


def _free(commands: list[_Command]) -> str:
    """A pattern of the options whose values are not known."""
    values = {option: words for one in commands for option, words in one.values.items()}
    return " | ".join(f"*' {option}'" for option, words in values.items() if not words)


def _named(commands: list[_Command]) -> str:
    """A pattern of the commands that take names of regions."""
    return " | ".join(f"'{one.name} '*" for one in commands if one.names)


def _bash(commands: list[_Command]) -> str:
    def case(pattern: str, words: Iterable[str]) -> str:
        return f"{pattern}) words=$'" + "\\n".join(words) + "' ;;"

    return _filled(
        _BASH,
        8,
        commands=["\\n".join([*COMMANDS, "--help", "--version"])],
        values=[case(pattern, words) for pattern, words in _values(commands)],
        free=[_free(commands)],
        words=[
            *(case(f"'{one.name} -'*", one.options) for one in commands),
            *(case(f"'{one.name} '*", one.words) for one in commands if one.words),
        ],
        named=[_named(commands)],
        names=[_NAMES],
    )


def _zsh(commands: list[_Command]) -> str:
    def quoted(pairs: Iterable[tuple[str, str]]) -> str:
        words = (f"{name}:{about}".replace("'", "'\\''") for name, about in pairs)
        return " ".join(f"'{word}'" for word in words)

    return _filled(
        _ZSH,
        4,
        commands=[quoted(_abouts())],
        values=[
            f"{pattern}) compadd -- {' '.join(words)}; return ;;"
            for pattern, words in _values(commands)
        ],
        free=[_free(commands)],
        words=[
            *(
                f"'{one.name} -'*) found=({quoted(one.options.items())}); "
                f"_describe option found; return ;;"
                for one in commands
            ),
            *(
                f"'{one.name} '*) compadd -- {' '.join(one.words)}; return ;;"
                for one in commands
                if one.words
            ),
        ],
        named=[_named(commands)],
        names=[_NAMES],
    )


def _fish(commands: list[_Command]) -> str:
    def quoted(text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    lines = ["# fish completion of gdrpy, made by: gdrpy completion fish"]
    for name, about in _abouts():
        lines.append(f"complete -c gdrpy -f -n __fish_use_subcommand -a {name} -d {quoted(about)}")
    for one in commands:
        line = f"complete -c gdrpy -n '__fish_seen_subcommand_from {one.name}'"
        if one.names:
            lines.append(f"{line} -a {quoted(f'({_NAMES})')} -d region")
        if one.words:
            lines.append(f"{line} -f -a {quoted(' '.join(one.words))}")
        for option, about in one.options.items():
            words = one.values.get(option)
            takes = "" if words is None else f" -x -a '{' '.join(words)}'" if words else " -r"
            lines.append(f"{line} -l {option[2:]}{takes} -d {quoted(about)}")
    return "\n".join(lines) + "\n"


_SCRIPTS: dict[str, Callable[[list[_Command]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
