"""Output tokens per second of the engine alone, prefill included: no service, no network.

    python benchmarks/offline.py --model PATH --requests 1,8,32 --prompt 128 --output 128

All requests of a round arrive at once; prompts are random ids, so that no prefix is cached.
"""

import argparse
import json
import platform
import random
import time
from dataclasses import asdict, dataclass

import torch

from engine.build import build_engine
from engine.config import DTYPES, EngineConfig
from engine.engine import Engine
from engine.request import RequestSpec, SamplingParams


@dataclass(frozen=True, slots=True)
class Round:
    """One measured round. Times in seconds; first_token: until every request has a token."""

    requests: int
    prompt_tokens: int
    output_tokens: int
    seconds: float
    first_token: float

    @property
    def tokens_per_second(self) -> float:
        """Output tokens per second, prefill included."""
        return self.requests * self.output_tokens / self.seconds

    @property
    def decode_tokens_per_second(self) -> float:
        """Output tokens per second after every request has its first."""
        return self.requests * (self.output_tokens - 1) / (self.seconds - self.first_token)


def run_round(engine: Engine, arguments: argparse.Namespace, requests: int, seed: int) -> Round:
    """Adds `requests` random prompts at once and runs the engine until all are done."""
    generator = random.Random(seed)
    sampling = SamplingParams(
        temperature=arguments.temperature, top_p=arguments.top_p, top_k=arguments.top_k
    )
    for number in range(requests):
        prompt = tuple(generator.randrange(engine.info.vocab_size) for _ in range(arguments.prompt))
        engine.add(RequestSpec(f"{seed}-{number}", prompt, sampling, arguments.output))
    started, first, have_token = time.perf_counter(), 0.0, set[str]()
    while engine.has_work:
        have_token.update(output.request_id for output in engine.step() if output.token_ids)
        if first == 0.0 and len(have_token) == requests:
            first = time.perf_counter() - started
    seconds = time.perf_counter() - started
    return Round(requests, arguments.prompt, arguments.output, seconds, first)


def build(arguments: argparse.Namespace) -> Engine:
    """The engine, large enough for the largest round."""
    largest = max(arguments.requests)
    config = EngineConfig(
        model_path=arguments.model,
        device=arguments.device,
        dtype=arguments.dtype,
        max_model_len=arguments.prompt + arguments.output,
        max_num_seqs=largest,
        max_num_batched_tokens=max(arguments.batched_tokens, largest),
        num_threads=arguments.threads,
    )
    return build_engine(config, lambda stage, share: None)


def parse() -> argparse.Namespace:
    """Command line arguments; --requests becomes a list of integers."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, help="GGUF file or model directory")
    parser.add_argument("--requests", default="1,8,32", help="requests at once, one round each")
    parser.add_argument("--prompt", type=int, default=128, help="tokens of each prompt")
    parser.add_argument("--output", type=int, default=128, help="tokens of each output")
    parser.add_argument("--dtype", choices=DTYPES, default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--batched-tokens", type=int, default=512)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--top-k", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=3, help="rounds of each size; best counts")
    parser.add_argument("--json", action="store_true", help="print JSON in place of a table")
    arguments = parser.parse_args()
    arguments.requests = [int(count) for count in arguments.requests.split(",")]
    return arguments


def report(arguments: argparse.Namespace, engine: Engine, best: list[Round]) -> None:
    """Prints the best round of each size."""
    if arguments.json:
        rounds = [{**asdict(r), "tokens_per_second": r.tokens_per_second} for r in best]
        facts = {"machine": platform.processor(), "torch": torch.__version__}
        print(json.dumps({**facts, "engine": asdict(engine.info), "rounds": rounds}, indent=2))
        return
    print(f"{engine.info.family} {engine.info.dtype}, {torch.get_num_threads()} threads")
    print(f"{'requests':>8} {'tokens/s':>9} {'decode/s':>9} {'first token s':>14}")
    for r in best:
        speeds = f"{r.tokens_per_second:9.1f} {r.decode_tokens_per_second:9.1f}"
        print(f"{r.requests:8} {speeds} {r.first_token:14.3f}")


def main() -> None:
    """Measures each size `--repeats` times, interleaved, and keeps the best."""
    arguments = parse()
    engine = build(arguments)
    rounds: dict[int, list[Round]] = {requests: [] for requests in arguments.requests}
    for repeat in range(arguments.repeats):
        for requests in arguments.requests:
            rounds[requests].append(run_round(engine, arguments, requests, seed=repeat))
    best = [min(of_size, key=lambda r: r.seconds) for of_size in rounds.values()]
    report(arguments, engine, best)


if __name__ == "__main__":
    main()
