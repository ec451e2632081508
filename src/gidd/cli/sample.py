"""Generate text with a model, optionally between a prompt and a suffix.

Examples:
  gidd sample models/nano
  gidd sample models/nano --prompt "My fellow citizens" --num-samples 4 --steps 64 --temperature 0.8
  gidd sample models/nano --live
  gidd sample models/nano --block-length 16 --max-tokens 200 --stop "." "?"
  gidd sample models/nano --prompt "Tim is " --pattern "[1-9] years old[.]" --max-tokens 12
  gidd sample models/nano --html sample.html --self-correction.forward-passes 64
  gidd sample models/nano --num-samples 100 --jsonl > samples.jsonl
  gidd sample models/nano --num-samples 100000 --out samples/nano
  gidd sample models/nano --num-samples 100000 --out samples/nano --executor ray --ray.num-gpus 1

With --out, the same command resumes what was interrupted, and a larger --num-samples adds samples.
On a Ray cluster all machines must see the model and --out under the same paths.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from gidd.cli.model_options import TextCommandOptions, parse_checked, show_steps
from gidd.cli.output import print_text, show_samples, write_stdout
from gidd.common.actors import ActorOptions
from gidd.common.config.allowed import integer, unused_problems
from gidd.common.files import read_json
from gidd.common.messages import print_message, show_counts
from gidd.errors import ConfigError
from gidd.pipeline.options import STOP


@dataclass(frozen=True, kw_only=True)
class SampleOptions(TextCommandOptions):
    """Options of `gidd sample`."""

    prompt: str = ""
    """Text that every sample starts with."""
    suffix: str = ""
    """Text that every sample ends with. Without it, a sample ends at the end-of-text token."""
    length: Annotated[int, integer(1)] | None = None
    """Length in tokens, including prompt and suffix; None is the model's context, at most 2048."""
    max_tokens: Annotated[int, integer(1)] | None = None
    """Number of new tokens, in place of --length."""
    stop: Annotated[tuple[str, ...], STOP] = ()
    """Texts: a sample ends before the first of them that is generated."""
    pattern: str | None = None
    """Regular expression that the new text matches as a whole, e.g. "[0-9]{4}-[0-9]{2}"."""
    schema: Path | None = None
    """JSON file with a JSON Schema: the new text is valid JSON of it."""
    out: Path | None = None
    """Folder to write many samples to, as JSONL files; resumes if it exists."""
    executor: Literal["local", "ray"] = "local"
    """With --out: sample in this process, or on the actors of a Ray cluster."""
    samples_per_file: Annotated[int, integer(1, 65_536)] = 64
    """With --out: samples per file; an interruption loses the unfinished files only."""
    batch_size: Annotated[int, integer(1)] | None = None
    """With --out: batch size of a forward pass; None is 1 on a CPU, 16 on other devices. Samples
    are identical only for equal values."""
    threads: Annotated[int, integer(1, 1024)] = 1
    """With --out: CPU threads per process or actor; several actors use cores better."""
    ray: ActorOptions = field(default_factory=ActorOptions)
    """Actors on a Ray cluster, for --executor ray."""

    def problems(self) -> Iterable[str]:
        """Yield one message per option that others exclude, each starting with its name."""
        yield from super().problems()
        output, has_blocks = self.output, self.sampling.block_length is not None
        if has_blocks and self.suffix:
            yield "block_length must be omitted with --suffix: a block does not see what follows."
        if has_blocks and (output.html or output.live):
            yield "block_length must be omitted with --html and --live, which show all tokens."
        if self.length is not None and self.max_tokens is not None:
            yield "max_tokens must be omitted with --length, which includes the prompt."
        if self.pattern is not None and self.schema is not None:
            yield "pattern must be omitted with --schema, which stands for a pattern."
        if self.stop and (self.pattern is not None or self.schema is not None):
            yield "stop must be omitted with --pattern and --schema, which say where the text ends."
        if self.out is not None and (self.pattern is not None or self.schema is not None):
            yield "out writes samples of any text: omit --pattern and --schema."
        if self.stop and self.suffix:
            yield "stop must be omitted with --suffix, which ends the text."
        if self.executor != "ray":
            yield from unused_problems(self.ray, "ray.", "--executor ray")
        for name in ("samples_per_file", "batch_size", "threads") if self.out is None else ():
            if getattr(self, name) != getattr(SampleOptions, name):
                yield f"{name} needs --out FOLDER to write the samples to."
        if self.out is None and self.executor == "ray":
            yield "executor ray needs --out FOLDER to write the samples to."
        if self.out is not None and (output.live or output.html or output.jsonl):
            yield "out writes files: omit --live, --html and --jsonl."
        if self.out is not None and (self.stop or self.max_tokens is not None):
            yield "out writes whole samples: omit --stop, and use --length for --max-tokens."


def main(arguments: Sequence[str]) -> None:
    """Parse, sample, show."""
    options = parse_checked(SampleOptions, "gidd sample", __doc__, arguments)
    if options.out is not None:
        _sample_to_folder(options, options.out)
        return
    schema = None if options.schema is None else _read_schema(options.schema)
    pipe = options.runtime.load(options.model)
    is_plain = not (options.output.live or options.output.html or options.output.jsonl)
    is_plain = is_plain and not options.sampling.revise  # finished blocks of a stream do not change
    if options.sampling.block_length is not None and options.num_samples == 1 and is_plain:
        stream = pipe.stream(
            prompt=options.prompt,
            length=options.length,
            max_tokens=options.max_tokens,
            stop=options.stop,
            pattern=options.pattern,
            schema=schema,
            seed=options.seed,
            sample_index=options.start_index,
            options=options.sampling,
        )
        for piece in stream.pieces():
            write_stdout(piece)
        print_text("")
        return
    with show_steps("sampling", pipe, options.num_samples, live=options.output.live) as on_step:
        generations = pipe.generate(
            prompt=options.prompt,
            suffix=options.suffix,
            length=options.length,
            max_tokens=options.max_tokens,
            stop=options.stop,
            pattern=options.pattern,
            schema=schema,
            on_step=on_step,
            **options.settings,
        )
    title = f"{options.prompt} …" if options.prompt else "Text from noise"
    show_samples(options, pipe, generations, title)


def _read_schema(path: Path) -> dict[str, Any]:
    """Return the JSON Schema of a file."""
    return read_json(path, "It is a JSON Schema, an object.", ConfigError)


def _sample_to_folder(options: SampleOptions, out: Path) -> None:
    from gidd.runs.bulk import BulkJob, sample_to_folder

    values = {field.name: getattr(options, field.name) for field in fields(options)}
    values |= asdict(options.runtime) | {"block_size": options.samples_per_file}
    job = BulkJob(**{field.name: values[field.name] for field in fields(BulkJob)})
    actors = options.ray if options.executor == "ray" else None
    has_begun = False
    with show_counts("sampling") as report:

        def on_block(done: int, total: int) -> None:
            nonlocal has_begun
            if done and not has_begun:
                print_message(f"{done:,} of {total:,} samples are finished.")
            has_begun = True
            report(done, total)

        try:
            folder = sample_to_folder(job, out, actors=actors, on_block=on_block)
        except KeyboardInterrupt:
            print_message(f"finished files in {out} are kept; the same command resumes.")
            raise
    print_text(f"{out}: {folder.num_samples:,} samples in {sum(1 for _ in folder.blocks):,} files")
