#!/usr/bin/env python3
"""Other ways to step AdamW whose state is larger than the GPU's memory, to be run beside
`optlease bench` on the same machine: one JSON document, one entry a peer.

  resident   all state in the GPU's memory, torch's fused AdamW
  whole      the state in pinned host memory: all of it in, one step, all of it out
  chunked    the same through 2 to 4 slots on the GPU, copies and update overlapped
  megatron   Megatron-LM: only said whether it is there

FP32 main weights, exp_avg and exp_avg_sq; BF16 gradients and parameters in the GPU's memory. The
peers in host memory turn gradients into FP32 and write BF16 parameters, as Optlease does; the
resident one has FP32 gradients, which is what torch's optimizer takes.
"""
import argparse
import json
import statistics
import sys
import time

EXIT_USAGE = 2
EXIT_NO_DEVICE = 14  # as `optlease` has it
MIB = 1 << 20
STATE_ARRAYS = 3
STATE_BYTES = 4 * STATE_ARRAYS  # a parameter
UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
BETAS, LR, EPS, WEIGHT_DECAY = (0.9, 0.95), 1e-3, 1e-8, 0.1
PEERS = ("resident", "whole", "chunked", "megatron")


def count(text):
    digits = text.rstrip("KMGi")
    unit = text[len(digits):]
    if not digits.isdigit() or int(digits) == 0 or unit not in UNITS:
        raise argparse.ArgumentTypeError(f"'{text}' is no count such as 512Mi")
    return int(digits) * UNITS[unit]


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=count, default=512 << 20)
    parser.add_argument("--steps", type=int, default=10, help="measured, after --warm-up others")
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--slot-mib", type=int, default=192, help="state bytes of one chunk")
    parser.add_argument("--slots", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    chosen = parser.parse_args()
    if min(chosen.steps, chosen.slot_mib, *chosen.slots) < 1 or chosen.warm_up < 0:
        parser.error("--steps, --slot-mib and --slots are at least 1, --warm-up at least 0")
    return chosen


def import_torch():
    try:
        import torch
    except ImportError as error:
        print(f"peers.py: torch cannot be imported ({error}): install it to run the peers",
              file=sys.stderr)
        sys.exit(EXIT_NO_DEVICE)
    if not torch.cuda.is_available():
        print("peers.py: torch sees no CUDA device here", file=sys.stderr)
        sys.exit(EXIT_NO_DEVICE)
    return torch


class Adam:
    """torch's fused update over slices of flat arrays, in place."""

    def __init__(self, torch):
        from torch.optim.adamw import adamw
        self._adamw = adamw
        self._torch = torch

    def step_counter(self):
        return self._torch.zeros((), device="cuda")

    def __call__(self, main, grad, exp_avg, exp_avg_sq, counter):
        self._adamw([main], [grad], [exp_avg], [exp_avg_sq], [], [counter], fused=True,
                    amsgrad=False, beta1=BETAS[0], beta2=BETAS[1], lr=LR,
                    weight_decay=WEIGHT_DECAY, eps=EPS, maximize=False)


class HostState:
    """The state in pinned memory, cut into chunks, with gradients and parameters on the GPU."""

    def __init__(self, torch, parameters, chunk_elements):
        self.torch = torch
        self.grads = torch.full((parameters,), 1e-3, dtype=torch.bfloat16, device="cuda")
        self.params = torch.zeros(parameters, dtype=torch.bfloat16, device="cuda")
        self.adam = Adam(torch)
        self.chunks = []
        for begin in range(0, parameters, chunk_elements):
            elements = min(chunk_elements, parameters - begin)
            arrays = [torch.zeros(elements, pin_memory=True) for _ in range(STATE_ARRAYS)]
            self.chunks.append((begin, arrays, self.adam.step_counter()))
        self.chunk_elements = chunk_elements

    def slot(self, elements=None):
        """Three state arrays and an FP32 gradient on the GPU."""
        elements = elements or self.chunk_elements
        return [self.torch.empty(elements, device="cuda") for _ in range(STATE_ARRAYS + 1)]

    def copy_in(self, slot, arrays):
        for there, here in zip(slot, arrays):
            there[:here.numel()].copy_(here, non_blocking=True)

    def copy_out(self, slot, arrays):
        for there, here in zip(slot, arrays):
            here.copy_(there[:here.numel()], non_blocking=True)

    def update(self, slot, begin, elements, counter):
        main, exp_avg, exp_avg_sq, grad = (array[:elements] for array in slot)
        grad.copy_(self.grads[begin:begin + elements])
        self.adam(main, grad, exp_avg, exp_avg_sq, counter)
        self.params[begin:begin + elements].copy_(main)


def resident(torch, options):
    main = torch.nn.Parameter(torch.zeros(options.parameters, device="cuda"))
    main.grad = torch.full_like(main, 1e-3)
    optimizer = torch.optim.AdamW([main], lr=LR, betas=BETAS, eps=EPS,
                                  weight_decay=WEIGHT_DECAY, fused=True)
    yield {"name": "resident"}, optimizer.step


def whole(torch, options):
    state = HostState(torch, options.parameters, options.slot_mib * MIB // STATE_BYTES)

    def step():
        slots = [state.slot(arrays[0].numel()) for _, arrays, _ in state.chunks]
        for slot, (_, arrays, _) in zip(slots, state.chunks):
            state.copy_in(slot, arrays)
        for slot, (begin, arrays, counter) in zip(slots, state.chunks):
            state.update(slot, begin, arrays[0].numel(), counter)
        for slot, (_, arrays, _) in zip(slots, state.chunks):
            state.copy_out(slot, arrays)

    yield {"name": "whole"}, step


def chunked_step(torch, state, slot_count):
    streams = [torch.cuda.Stream() for _ in range(3)]

    def step():
        copy_in, compute, copy_out = streams
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream())
        slots = [state.slot() for _ in range(min(slot_count, len(state.chunks)))]
        free = [None] * len(slots)
        for index, (begin, arrays, counter) in enumerate(state.chunks):
            which = index % len(slots)
            slot = slots[which]
            if free[which] is not None:
                copy_in.wait_event(free[which])
            with torch.cuda.stream(copy_in):
                state.copy_in(slot, arrays)
            compute.wait_stream(copy_in)
            with torch.cuda.stream(compute):
                state.update(slot, begin, arrays[0].numel(), counter)
            copy_out.wait_stream(compute)
            with torch.cuda.stream(copy_out):
                state.copy_out(slot, arrays)
                free[which] = copy_out.record_event()
        for stream in streams:
            torch.cuda.current_stream().wait_stream(stream)

    return step


def chunked(torch, options):
    state = HostState(torch, options.parameters, options.slot_mib * MIB // STATE_BYTES)
    for slot_count in options.slots:
        facts = {"name": "chunked", "slots": slot_count, "slot_mib": options.slot_mib}
        yield facts, chunked_step(torch, state, slot_count)


def megatron():
    try:
        import megatron.core
    except ImportError:
        return {"name": "megatron", "skipped": "Megatron-LM cannot be imported here"}
    version = getattr(megatron.core, "__version__", "of unknown version")
    return {"name": "megatron",
            "skipped": f"Megatron-LM {version} is here; its chunked offload needs its own training "
                       "set-up, which this script does not make"}


def measure(torch, options, step):
    """Median and best time of a step, and the most memory above what was held between steps."""
    seconds = []
    torch.cuda.synchronize()
    rest = torch.cuda.memory_allocated()
    for index in range(options.warm_up + options.steps):
        if index == options.warm_up:
            rest = torch.cuda.memory_allocated()  # optimizers make their state in their first step
            torch.cuda.reset_peak_memory_stats()
        begun = time.perf_counter()
        step()
        torch.cuda.synchronize()
        if index >= options.warm_up:
            seconds.append(time.perf_counter() - begun)
    middle = statistics.median(seconds)
    return {"ms": middle * 1e3, "best_ms": min(seconds) * 1e3,
            "ns_per_parameter": middle * 1e9 / options.parameters,
            "hbm_bytes_above_rest": torch.cuda.max_memory_allocated() - rest}


def run_peer(torch, options, make):
    rows = []
    try:
        for facts, step in make(torch, options):
            rows.append({**facts, **measure(torch, options, step)})
    except (torch.cuda.OutOfMemoryError, RuntimeError) as error:
        rows.append({"name": make.__name__, "failed": str(error).splitlines()[0]})
    torch.cuda.empty_cache()
    return rows


def main():
    options = arguments()
    torch = import_torch()
    rows = []
    for make in (resident, whole, chunked):
        if make.__name__ in options.peers:
            rows += run_peer(torch, options, make)
    if "megatron" in options.peers:
        rows.append(megatron())
    print(json.dumps({"schema": 1, "gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
                      "parameters": options.parameters, "steps": options.steps,
                      "peers": rows}, indent=2))
    return 1 if any("failed" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
