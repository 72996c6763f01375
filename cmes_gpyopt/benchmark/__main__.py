"""Command line: ``python -m cmes_gpyopt.benchmark quality``, ``report``, ``parallel`` and ``speed``."""

import argparse
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from ..errors import CMESError
from . import report
from .methods import parse_methods
from .quality import Task, check, make_tasks, parse_problems, run_all
from .records import ResultsFile, Run, read


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit status."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except CMESError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130


def _parallel(options: argparse.Namespace) -> int:
    from . import parallel

    print(parallel.report(options.evaluations, options.seconds, options.workers, options.repeats))
    return 0


def _speed(options: argparse.Namespace) -> int:
    from . import speed

    everything = options.sections == "all"
    sections = list(speed.SECTIONS) if everything else [name.strip() for name in options.sections.split(",")]
    chosen = ("" if everything else f" --sections {options.sections}") + (" --quick" if options.quick else "")
    plan = speed.QUICK if options.quick else speed.FULL
    made = speed.run(sections, plan, options.output, f"python -m cmes_gpyopt.benchmark speed{chosen}")
    print("written to " + " and ".join(map(str, made)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m cmes_gpyopt.benchmark", description=__doc__)
    commands = parser.add_subparsers(required=True)
    quality = commands.add_parser("quality", help="run problems x methods x seeds; the same command resumes")
    quality.set_defaults(command=_quality)
    quality.add_argument("--problems", default="all", help="dev, held-out, all, or names, separated by commas")
    quality.add_argument(
        "--methods",
        default="cmes,paper,cei,ap,random",
        help="separated by commas: methods of the library, also with options (cmes:estimator=kl,confidence=0.9), paper, "
        "sobol, and the peers botorch, optuna-gp, optuna-tpe, smac",
    )
    quality.add_argument("--seeds", default="20", help="a number n for 0 to n - 1, or a range such as 20-39")
    quality.add_argument(
        "--evaluations", type=int, help="suggestions in a run; default 40, and 60 above six dimensions"
    )
    quality.add_argument("--feedback", choices=["binary", "real"], default="binary")
    quality.add_argument("--start", choices=["random", "infeasible"], default="random", help="the five initial points")
    quality.add_argument("--output", type=Path, default=Path("results/quality.csv"), help="the results file")
    quality.add_argument("--processes", type=int, default=1)
    workers = commands.add_parser("parallel", help="wall time of asynchronous runs over the ideal")
    workers.set_defaults(command=_parallel)
    workers.add_argument("--evaluations", type=int, default=40)
    workers.add_argument("--seconds", type=float, default=0.5, help="mean duration of an evaluation")
    workers.add_argument("--workers", type=int, default=4)
    workers.add_argument("--repeats", type=int, default=3)
    speed = commands.add_parser("speed", help="ratios of times: against other libraries, and against what is possible")
    speed.set_defaults(command=_speed)
    speed.add_argument(
        "--sections",
        default="all",
        help="all, or some of targets, peers, limit, breakdown, growth, separated by commas",
    )
    speed.add_argument("--quick", action="store_true", help="tiny sizes and two repeats, to see that it works")
    speed.add_argument(
        "--output",
        type=Path,
        default=Path("examples/results/speed.csv"),
        help="CSV file to write, where other sections are kept; a Markdown file and a PNG are put beside it",
    )
    reporting = commands.add_parser("report", help="tables of one or several results files")
    reporting.set_defaults(command=_report)
    reporting.add_argument("files", nargs="+", type=Path)
    reporting.add_argument("--methods", help="those to compare; default all in the files")
    reporting.add_argument("--problems", help="those to use; default all in the files")
    reporting.add_argument("--reference", help="method that the others are compared with; default the first")
    reporting.add_argument("--evaluations", type=int, help="use only so many suggestions of each run")
    reporting.add_argument("--below", default="", help="values, separated by commas: share of runs that end below them")
    reporting.add_argument("--output", type=Path, help="Markdown file to write, and a CSV beside it")
    return parser


def _quality(options: argparse.Namespace) -> int:
    if options.processes < 1 or (options.evaluations is not None and options.evaluations < 1):
        raise CMESError("--processes and --evaluations must be positive")
    methods = parse_methods(options.methods)
    tasks = make_tasks(
        parse_problems(options.problems),
        methods,
        _seeds(options.seeds),
        evaluations=options.evaluations,
        feedback=options.feedback,
        start=options.start,
    )
    with ResultsFile(options.output) as results:
        check(tasks, results)
        failed = _run(tasks, results, options.processes)
        results.sort()
        made = [results.runs[task.key] for task in tasks if task.key in results.runs]
    if made:
        _show(report.compare(made), None, [], options.output.with_suffix(".md"))
    return 1 if failed else 0


def _run(tasks: list[Task], results: ResultsFile, processes: int) -> int:
    """Make the runs, print how it goes, and return how many failed."""
    begun, failed, total = time.monotonic(), 0, len(tasks)
    before = sum(task.key in results.runs for task in tasks)
    print(f"{total} runs, {before} of them in {results.path}", flush=True)
    for done, (task, outcome) in enumerate(run_all(tasks, results, processes), start=1):
        elapsed = time.monotonic() - begun
        left = elapsed / done * (total - before - done)
        if isinstance(outcome, Run):
            text = f"regret {report.final_regret(outcome):.3g}, {outcome.seconds.mean():.2g} s a suggestion"
        else:
            failed += 1
            text = f"FAILED, {type(outcome).__name__}: {outcome}"
        print(
            f"[{before + done}/{total}] {task.problem.name} {task.method.label} seed {task.seed}: {text}; "
            f"{_clock(elapsed)} passed, {_clock(left)} to go",
            flush=True,
        )
    return failed


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _report(options: argparse.Namespace) -> int:
    runs = [run for path in options.files for run in read(path)]
    if options.problems:
        names = {problem.name for problem in parse_problems(options.problems)}
        runs = [run for run in runs if run.problem in names]
    if options.evaluations is not None:
        runs = [report.truncated(run, options.evaluations) for run in runs]
    methods = [method.label for method in parse_methods(options.methods)] if options.methods else None
    if methods:
        runs = [run for run in runs if run.method in methods]
    try:
        below = [float(value) for value in filter(None, options.below.split(","))]
    except ValueError:
        raise CMESError(f"--below takes numbers separated by commas, got {options.below!r}") from None
    _show(report.compare(runs, methods), options.reference, below, options.output)
    return 0


def _show(comparison: report.Comparison, reference: str | None, below: Sequence[float], output: Path | None) -> None:
    made = report.tables(comparison, reference, below)
    print("\n" + "\n".join(map(str, made)))
    if output is not None:
        print("written to " + " and ".join(map(str, report.write(comparison, made, output))))


def _seeds(text: str) -> list[int]:
    first, dash, last = text.partition("-")
    try:
        seeds = list(range(int(first), int(last) + 1)) if dash else list(range(int(text)))
    except ValueError:
        seeds = []
    if not seeds:
        raise CMESError(f"--seeds takes a positive number or a range such as 20-39, got {text!r}")
    return seeds


if __name__ == "__main__":
    sys.exit(main())
