"""Links a shared object as ``zig cc`` does, and an ELF filter, which zig's driver refuses, by its
linker alone: a filter needs no library.
"""

import os
import sys


def linker_words(words: list[str]) -> list[str]:
    """What the compiler's words are to the linker: its own, objects and the output."""
    kept = []
    for word in words:
        if word.startswith("-Wl,"):
            kept += word.split(",")[1:]
        elif not word.startswith("-") or word == "-o":
            kept.append(word)
    return kept


def command(target: str, words: list[str]) -> list[str]:
    """The command of zig that makes a shared object for a target such as aarch64-linux-gnu."""
    if any(word.startswith("-Wl,--filter") for word in words):
        return ["ld.lld", "-shared", *linker_words(words)]
    return ["cc", "-target", target, "-shared", *words]


if __name__ == "__main__":
    zig, target, *words = sys.argv[1:]
    os.execv(zig, [zig, *command(target, words)])
