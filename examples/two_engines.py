"""A server of two engines: one answers, and the other sleeps until the first is killed.

The weights of a small decoder lie in the broker, sealed, once. The sleeping engine has opened them
before: it keeps their addresses, and no memory for them, and takes over within milliseconds.
Engines compute by torch on a GPU, else by numpy, with small integers, whose sums are exact.
"""

import json
import socket
import subprocess
import sys
import tempfile

import numpy as np

import gdrpy
from gdrpy import cuda

WORDS, WIDTH, LAYERS, LONGEST, ANSWER = 256, 64, 3, 48, 40
SHAPES = dict.fromkeys(("query", "key", "value", "out"), (LAYERS, WIDTH, WIDTH))
SHAPES |= {"up": (LAYERS, WIDTH, 4 * WIDTH), "down": (LAYERS, 4 * WIDTH, WIDTH)}
SHAPES |= {"words": (WORDS, WIDTH), "places": (LONGEST, WIDTH), "head": (WORDS, WIDTH)}
PYTHON = (sys.executable, "-P")
PROMPTS = np.random.default_rng(2).integers(0, WORDS, (40, LONGEST - ANSWER)).tolist()


def library():
    """The library that computes."""
    if cuda.simulated():
        return np
    import torch

    torch.set_default_device("cuda")
    return torch


def normed(x):
    """The vector scaled to integers from -7 to 7."""
    return (x * (7 / abs(x).max().clip(1))).round()


def answer(weights, zeros, prompt):
    """The most likely tokens after a prompt, one by one."""
    keys, values = zeros((2, LAYERS, LONGEST, WIDTH))  # the KV cache
    token = prompt[0]
    for place in range(LONGEST - 1):
        seen = slice(place + 1)
        x = weights["words"][token] + weights["places"][place]
        for layer in range(LAYERS):
            y = normed(x)
            keys[layer, place] = normed(y @ weights["key"][layer])
            values[layer, place] = normed(y @ weights["value"][layer])
            scores = (keys[layer, seen] @ normed(y @ weights["query"][layer]) / 64).round()
            shares = 2.0 ** (scores - scores.max()).clip(-8)  # softmax, by whole powers of two
            x = x + normed(shares @ values[layer, seen]) @ weights["out"][layer]
            x = x + normed((normed(x) @ weights["up"][layer]).clip(0)) @ weights["down"][layer]
        if place + 1 < len(prompt):
            token = prompt[place + 1]
        else:
            yield (token := int((weights["head"] @ normed(x)).argmax()))


def make(path):
    """Publish random weights, and print what the model answers alone, with its own copy of them."""
    random = np.random.default_rng(1)
    weights = {name: random.integers(-1, 2, SHAPES[name]).astype("f4") for name in SHAPES}
    with gdrpy.connect(path) as broker:
        broker.put_tensors("weights", weights, seal=True).close()
    lib = library()
    own = {name: lib.asarray(one) for name, one in weights.items()}
    print(json.dumps([list(answer(own, lib.zeros, prompt)) for prompt in PROMPTS]))


def serve(path, peer):
    """Answer the prompts of a socket; sleep until the first one."""
    lib = library()
    with gdrpy.connect(path, reconnect=30) as broker, broker.get("weights", cpu=False) as region:
        weights = {name: lib.from_dlpack(one) for name, one in region.tensors().items()}
        list(answer(weights, lib.zeros, [0]))  # loads kernels
        region.detach()
        peer.send(b"asleep\n")
        for line in peer.makefile():
            region.attach()  # if it sleeps: the tensors are valid again
            for token in answer(weights, lib.zeros, json.loads(line)):
                peer.send(b"%d\n" % token)
        del weights  # before their region


class Engine:
    """An engine's process, and a socket to it."""

    def __init__(self, path):
        self.peer, other = socket.socketpair()
        with other:
            words = [*PYTHON, __file__, path, str(other.fileno())]
            self.process = subprocess.Popen(words, pass_fds=[other.fileno()])
        self.lines, self.asleep = self.peer.makefile(), False

    def wait_until_asleep(self):
        if not self.asleep and not self.lines.readline():
            sys.exit("an engine ended before it slept")
        self.asleep = True

    def ask(self, prompt, kill=False):
        """The answer, or as much of it as came; ``kill`` ends the engine in the middle."""
        self.wait_until_asleep()  # if it has just been started
        found = []
        try:
            self.peer.send(json.dumps(prompt).encode() + b"\n")
            while len(found) < ANSWER and (line := self.lines.readline()):
                found.append(int(line))
                if kill and len(found) == ANSWER // 2:
                    self.process.kill()
        except OSError:  # it was killed before
            pass
        return found

    def close(self):
        self.lines.close()
        self.peer.close()  # the engine ends, if it lives
        self.process.wait()


def start_broker(path):
    """A broker that serves at a path."""
    words = [*PYTHON, "-m", "gdrpy", "serve", "--json", "--log-level=warning", "--socket", path]
    process = subprocess.Popen(words, stdout=subprocess.PIPE)
    process.stdout.readline()
    return process


def main(path):
    """The front: it sends prompts to the leader, and has the standby take over; the exit status."""
    broker = start_broker(path)
    try:
        right = json.loads(subprocess.check_output([*PYTHON, __file__, path]))
        leader, standby = Engine(path), Engine(path)
        wrong = takeovers = 0
        for number, prompt in enumerate(PROMPTS):
            if number == 20:
                standby.wait_until_asleep()  # an engine needs a broker to start
                broker.kill()
            if number == 25:  # the next broker takes over the weights
                broker.wait()
                broker = start_broker(path)
            found = leader.ask(prompt, kill=number in (10, 30))
            while len(found) < ANSWER:
                leader.close()
                leader, standby = standby, Engine(path)
                found = leader.ask(prompt)
                takeovers += 1
            wrong += found != right[number]
        print(f"{takeovers} takeovers, {len(PROMPTS)} answers, {wrong} of them wrong")
        with gdrpy.connect(path) as client:
            once = client.status()["used"]["0"] == client.stat("weights").size
        print(f"memory for weights is taken once: {once}")
        leader.close()
        standby.wait_until_asleep()
        standby.close()
        return int(wrong > 0 or not once)
    finally:
        broker.terminate()  # in peace: the memory goes back
        broker.wait()


if __name__ == "__main__":
    match sys.argv[1:]:
        case [path, number]:
            serve(path, socket.socket(fileno=int(number)))
        case [path]:
            make(path)
        case _:
            with tempfile.TemporaryDirectory() as folder:
                sys.exit(main(f"{folder}/broker.sock"))
