#!/usr/bin/env python3
"""Imports a large random checkpoint under a memory limit of 1.5 times its weight file, beside a plain copy of the file.

    import_memory.py KOINE_MODEL [--size small|full] [--dtype F32|F16|BF16] [--checkpoint DIR] [--work DIR]

Where control groups can be made (root), the import runs in one whose limit is 1.5 times the file, page cache included;
anything beyond it would be killed. Everywhere, the largest resident size that the kernel noted (VmHWM: private, shared
and mapped pages) must stay below the limit. Prints both, and the times of import and copy, both made durable. The
imported model has as many bytes; of a small one the bytes are compared, and it must load.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

from big_checkpoint import write_checkpoint
from koine_reference import read_safetensors

# Address sanitizer keeps shadow and freed memory: there the limit only shows that the run ends.
FACTOR = 16 if os.environ.get("KOINE_SANITIZER") else 1.5


class Group:
    """A control group with a memory limit; `path` is None where none can be made."""

    def __init__(self, limit):
        self.path = None
        for root, key in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
            if not os.path.exists(os.path.join(root, "cgroup.procs")):
                continue
            path = os.path.join(root, f"koine-import-{os.getpid()}")
            try:
                os.mkdir(path)
            except OSError:
                continue
            try:
                with open(os.path.join(path, key), "w") as file:
                    file.write(str(limit))
                self.path = path
                return
            except OSError:
                os.rmdir(path)

    def enter(self):
        """In the child, before it becomes the program."""
        if self.path is not None:
            with open(os.path.join(self.path, "cgroup.procs"), "w") as file:
                file.write(str(os.getpid()))

    def failures(self):
        """How often the limit stopped an allocation (pages were reclaimed instead), or None."""
        path = os.path.join(self.path or "", "memory.failcnt")
        if self.path is None or not os.path.exists(path):
            return None
        with open(path) as file:
            return int(file.read())

    def close(self):
        if self.path is None:
            return
        for _ in range(100):
            try:
                os.rmdir(self.path)
                return
            except OSError:
                time.sleep(0.05)


def run_and_watch(command, group):
    """Runs to the end; returns (seconds, largest VmHWM seen in bytes). VmHWM only grows and ends with the process: it is
    read every two milliseconds, so that the last reading is the end's."""
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, preexec_fn=group.enter)
    peak = 0
    while process.poll() is None:
        try:
            # Before exec the child is this interpreter, whose size is not in question.
            if os.path.samefile(f"/proc/{process.pid}/exe", command[0]):
                with open(f"/proc/{process.pid}/status") as file:
                    for line in file:
                        if line.startswith("VmHWM:"):
                            peak = max(peak, int(line.split()[1]) * 1024)
        except (OSError, ValueError):
            pass
        time.sleep(0.002)
    seconds = time.monotonic() - start
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}")
    if peak == 0:
        sys.exit("the import's resident size was never seen")
    return seconds, peak


def copy(source, target):
    start = time.monotonic()
    subprocess.run(["cp", source, target], check=True)
    with open(target, "rb+") as file:
        os.fsync(file.fileno())
    return time.monotonic() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("koine_model")
    parser.add_argument("--size", choices=["full", "small"], default="small")
    parser.add_argument("--dtype", choices=["F32", "F16", "BF16"], default="F32")
    parser.add_argument("--checkpoint", help="use this folder's, made by big_checkpoint.py, instead of making one")
    parser.add_argument("--work", help="where to write (default: a temporary folder, which goes)")
    arguments = parser.parse_args()
    work = tempfile.mkdtemp(prefix="koine-import-", dir=arguments.work)
    try:
        checkpoint = arguments.checkpoint or os.path.join(work, "checkpoint")
        if arguments.checkpoint is None:
            start = time.monotonic()
            write_checkpoint(checkpoint, arguments.size, arguments.dtype, 1)
            print(f"made the checkpoint in {time.monotonic() - start:.1f} s")
        weights = os.path.join(checkpoint, "model.safetensors")
        size = os.path.getsize(weights)
        limit = int(FACTOR * size)
        model = os.path.join(work, "model")
        copied = copy(weights, os.path.join(work, "copy"))
        os.unlink(os.path.join(work, "copy"))
        group = Group(limit)
        try:
            seconds, peak = run_and_watch([arguments.koine_model, "import", checkpoint, "--out", model], group)
            failures = group.failures()
        finally:
            group.close()
        print(f"weights {size / 1e6:,.0f} MB; limit {limit / 1e6:,.0f} MB "
              f"({'a control group, in which the limit was met %s times' % failures if group.path else 'peak only'})")
        print(f"import {seconds:.1f} s, plain copy {copied:.1f} s; peak resident {peak / 1e6:,.0f} MB = "
              f"{peak / size:.2f} x the file")
        if peak > limit:
            sys.exit(f"the import held {peak:,} bytes, more than {limit:,}")
        with open(os.path.join(model, "model.json")) as file:
            name = json.load(file)["name"]
        shared = os.path.join(model, "shared.safetensors")
        # Same numbers under other names: the header alone may differ in size.
        if not 0.99 < os.path.getsize(shared) / size < 1.01:
            sys.exit(f"{shared} has {os.path.getsize(shared):,} bytes, the checkpoint {size:,}")
        if arguments.size == "small" and arguments.checkpoint is None:
            ours, theirs = read_safetensors(shared), read_safetensors(weights)
            for a, b in (("embedding.weight", "model.shared.weight"),
                         ("decoder.layers.1.cross_attn.o.weight", "model.decoder.layers.1.encoder_attn.out_proj.weight"),
                         ("encoder.layers.0.ffn.down.bias", "model.encoder.layers.0.fc2.bias")):
                if not (ours[a] == theirs[b]).all():
                    sys.exit(f"{a} is not {b}")
            subprocess.run([arguments.koine_model, "inspect", model], check=True, stdout=subprocess.DEVNULL)
        print(f"model \"{name}\" imported")
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
