"""The command `ferrata`: everything that is not a stage of the graph.

Imports are inside the functions, so that `ferrata --help` and a wrong parameter answer in a
fraction of a second.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ferrata import __version__
from ferrata.errors import run_main

_EXAMPLES = """examples:
  ferrata params                     check params.yaml; all errors at once
  ferrata profile tiny               a small random model: the whole graph in minutes
  ferrata profile default            back to the real model
  ferrata chat --arm rl              talk to the trained model; its tool calls are shown
  ferrata play planning              play a task yourself
  ferrata summary                    table of the last evaluation
  ferrata doctor                     what is wrong here, and what to do about it
  ferrata clean --dry-run            what may be removed, and how much it takes

the graph itself is run by DVC:
  dvc repro                          run what has changed
  dvc exp run -S rl.learning_rate=2e-5
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status: 2 for a mistake in usage or parameters."""
    args = _parser().parse_args(argv)
    return run_main(lambda: args.run(args))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ferrata",
        description="Trains language-model agents with reinforcement learning, as a DVC pipeline.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"ferrata {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    params = commands.add_parser("params", help="check params.yaml and show all errors at once")
    params.set_defaults(run=_params)

    profile = commands.add_parser(
        "profile",
        help="write a profile of profiles/ into params.yaml",
        description="Writes the overrides of profiles/NAME.yaml into params.yaml. Comments and all "
        "other keys stay; each changed key is printed. An invalid result is not written.",
        epilog="example: ferrata profile tiny && dvc repro",
    )
    profile.add_argument("name", metavar="NAME", help="for example tiny or default")
    profile.set_defaults(run=_profile)

    chat = commands.add_parser(
        "chat",
        help="talk to the model of an arm",
        description="Plays episodes with your questions; tool calls, results and answers are "
        "shown as they happen.",
        epilog='example: ferrata chat --arm sft --question "What is 17 times 23?"',
    )
    chat.add_argument("--arm", default="rl", metavar="ARM", help="an arm of params.yaml (rl)")
    how = chat.add_mutually_exclusive_group()
    how.add_argument("--greedy", action="store_true", help="always the likeliest token (default)")
    how.add_argument("--temperature", type=_temperature, default=0.0, metavar="T", help="sample")
    chat.add_argument("--question", metavar="TEXT", help="ask this and leave; else interactive")
    chat.set_defaults(run=_chat)

    play = commands.add_parser(
        "play",
        help="play a task yourself, or watch how it is played",
        description="Shows one task of a capability and answers your turns as it answers a model's,"
        " with the reward parts. An empty line leaves.",
        epilog="example: ferrata play planning --band 2 --policy expert",
    )
    play.add_argument("capability", metavar="CAPABILITY", help="tool_use, reasoning, planning, ...")
    play.add_argument("--split", default="validation", help="split of the task (validation)")
    play.add_argument("--task", type=int, default=0, metavar="N", help="which task of it (0)")
    play.add_argument("--band", type=int, metavar="B", help="only tasks of this difficulty")
    who = play.add_mutually_exclusive_group()
    who.add_argument(
        "--policy",
        choices=("you", "expert", "demonstrator"),
        default="you",
        help="who plays: you (default), the expert, or the demonstrator of the SFT data",
    )
    who.add_argument("--arm", metavar="ARM", help="the model of this arm plays")
    play.set_defaults(run=_play)

    summary = commands.add_parser(
        "summary", help="print the table of the last evaluation: arm, success, interval"
    )
    summary.set_defaults(run=_summary)

    readme = commands.add_parser(
        "readme",
        help="write the measured numbers into README.md",
        description="Fills the generated parts of README.md from the committed files in metrics/.",
    )
    readme.add_argument(
        "--check", action="store_true", help="write nothing; fail if README.md is out of date"
    )
    readme.set_defaults(run=_readme)

    doctor = commands.add_parser(
        "doctor",
        help="what is wrong here, and what to do about it",
        description="One screen on environment, processor, memory, disk, parameters, interrupted "
        "stages and what would run. Changes nothing. Exit status 1 if a line is an error.",
    )
    doctor.add_argument("--json", action="store_true", help="the same as JSON")
    doctor.set_defaults(run=_doctor)

    clean = commands.add_parser(
        "clean",
        help="remove leftovers: checkpoints of interrupted stages, caches",
        description="Lists what is safe to remove, with sizes and reasons, and asks. Models, data, "
        "DVC's cache, MLflow's records, what git tracks and what a running stage uses stay.",
        epilog="example: ferrata clean --keep-checkpoints --yes",
    )
    sure = clean.add_mutually_exclusive_group()
    sure.add_argument("--dry-run", action="store_true", help="only list")
    sure.add_argument("--yes", action="store_true", help="do not ask")
    clean.add_argument(
        "--keep-checkpoints",
        action="store_true",
        help="leave what an interrupted stage can go on from",
    )
    clean.set_defaults(run=_clean)
    return parser


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a number >= 0 (0 is greedy)")
    return value


def _params(args: argparse.Namespace) -> int:
    from ferrata.config.loader import load
    from ferrata.environments import get_mixture

    get_mixture(load().prepare.weights)
    print("params.yaml: OK")
    return 0


def _profile(args: argparse.Namespace) -> int:
    from ferrata.config.profiles import apply_profile

    changes = apply_profile(args.name)
    for key, old, new in changes:
        print(f"{key}: {old} -> {new}")
    print(f"params.yaml: {len(changes)} keys changed" if changes else "params.yaml: nothing to do")
    return 0


def _chat(args: argparse.Namespace) -> None:
    from ferrata.serving.chat_cli import run

    run(args.arm, args.question, args.temperature)


def _play(args: argparse.Namespace) -> int:
    from ferrata.serving.play_cli import run

    return run(
        args.capability,
        split=args.split,
        number=args.task,
        band=args.band,
        policy=args.policy,
        arm=args.arm,
    )


def _summary(args: argparse.Namespace) -> None:
    from ferrata.config.paths import project_root
    from ferrata.reporting.summary import print_summary

    print_summary(project_root())


def _readme(args: argparse.Namespace) -> None:
    from ferrata.config.paths import project_root
    from ferrata.reporting.readme import update

    changed = update(project_root(), check=args.check)
    print("README.md: written" if changed else "README.md: up to date")


def _doctor(args: argparse.Namespace) -> int:
    from ferrata.housekeeping.doctor import run

    return run(as_json=args.json)


def _clean(args: argparse.Namespace) -> int:
    from ferrata.housekeeping.clean import run

    return run(dry_run=args.dry_run, yes=args.yes, keep_checkpoints=args.keep_checkpoints)


if __name__ == "__main__":
    sys.exit(main())
