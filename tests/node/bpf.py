"""Runs the classic BPF instructions that seccomp.py assembles."""

from __future__ import annotations

import struct


def decide(program: bytes, data: bytes) -> int:
    """What *program* returns for the seccomp_data *data*."""
    code = list(struct.iter_unpack("=HBBI", program))
    at, value = 0, 0
    for _ in range(len(code)):
        operation, if_true, if_false, k = code[at]
        at += 1
        if operation == 0x20:
            (value,) = struct.unpack_from("=I", data, k)
        elif operation == 0x54:
            value &= k
        elif operation == 0x05:
            at += k
        elif operation == 0x06:
            return int(k)
        else:
            met = {0x15: value == k, 0x25: value > k, 0x35: value >= k, 0x45: bool(value & k)}[operation]
            at += if_true if met else if_false
    raise AssertionError("the program does not end")
