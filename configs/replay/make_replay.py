#!/usr/bin/env python3
"""Writes the model and the gradients that configs/replay.toml replays, beside itself.

Nothing but the standard library, and the same bytes every time: numbers come from a linear
congruential generator.
"""
import json
import pathlib
import struct

SHAPES = {"layer.weight": [24, 32], "layer.bias": [24], "head.weight": [8, 24]}
STEPS = 4


def numbers(count, seed, scale):
    state = seed
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        yield scale * ((state >> 40) / 2**24 * 2 - 1)


def write(path, seed, scale):
    header, data = {}, b""
    for index, (name, shape) in enumerate(SHAPES.items()):
        count = 1
        for dim in shape:
            count *= dim
        values = struct.pack(f"<{count}f", *numbers(count, seed * 100 + index, scale))
        header[name] = {"dtype": "F32", "shape": shape,
                        "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


if __name__ == "__main__":
    here = pathlib.Path(__file__).parent
    write(here / "model.safetensors", 1, 0.1)
    for step in range(1, STEPS + 1):
        write(here / f"gradients.{step}.safetensors", 10 + step, 0.01)
