"""`LLM`: load a model, generate text."""

import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from onecat_jax.compile_cache import enable_compile_cache
from onecat_jax.config import EngineConfig
from onecat_jax.custom_calls.dispatch import routes
from onecat_jax.engine_builder import Progress, build_engine
from onecat_jax.errors import CheckpointError, RequestError, shown
from onecat_jax.loading import Checkpoint, locate
from onecat_jax.models import registry
from onecat_jax.outputs import RequestOutput, StreamDelta
from onecat_jax.prompts import Prompt, as_list, as_prompt
from onecat_jax.request import Request
from onecat_jax.results import Sample, request_output
from onecat_jax.sampling import request_row
from onecat_jax.sampling_params import SamplingParams
from onecat_jax.text import ChatTemplate, Tokenizer

Messages = Sequence[Mapping[str, Any]]
PromptLike = str | Sequence[int] | Mapping[str, Any]


def _default_params(checkpoint: Checkpoint) -> SamplingParams:
    try:
        return SamplingParams.from_generation_config(checkpoint.generation_config)
    except RequestError as error:
        raise CheckpointError(f"{checkpoint.root}/generation_config.json: {error}") from error


def _silent(what: str, done: int, total: int) -> None:
    """No progress."""


class LLM:
    """A model on this machine's default device.

    Calls may overlap: streams read in turn, `generate` inside the loop over a stream, threads. Whoever needs a token runs a
    launch for all requests, one launch at a time, and each caller gets its own results.

    Args:
      model: "tiny" (embedded), a checkpoint folder, or a Hugging Face name.
      progress: called with (what, done, total) while loading and warming up.
      engine_arguments: see EngineConfig.

    Raises:
      CheckpointError, ModelConfigError, CapacityError, EngineError: each says what to do.
    """

    def __init__(
        self, model: str = "tiny", *, progress: Progress | None = None, **engine_arguments: Any
    ) -> None:
        self.config = EngineConfig.from_arguments(engine_arguments)
        self._progress = progress or _silent
        enable_compile_cache()
        directory = locate(model)
        checkpoint = Checkpoint.open(directory)
        registry.resolve(
            checkpoint.config
        )  # before the files that only a model of a known kind needs
        self.tokenizer = Tokenizer.from_directory(directory)
        self.chat_template = ChatTemplate.from_directory(
            directory, special_tokens=self.tokenizer.special_tokens
        )
        self.default_sampling_params = _default_params(checkpoint)
        built = build_engine(
            checkpoint, self.tokenizer, self.config, self._progress, model=str(model)
        )
        self.memory_plan = built.plan
        self._engine = built.engine
        self._seeds = np.random.SeedSequence(self.config.seed)
        self._count = 0
        # Of the engine. Entered again when a stream that nobody reads any more is collected during a launch.
        self._lock = threading.RLock()

    @property
    def max_model_len(self) -> int:
        """Prompt and new tokens of one request at most."""
        return self._engine.scheduler.max_model_len

    def warm_up(self, scores: bool = False) -> None:
        """Compiles every program of the plain profile, with progress; later requests of it compile nothing.

        Args:
          scores: the programs of requests with logprobs or prompt_logprobs too.

        Raises:
          EngineError: with scores the programs would be too many.
        """
        with self._lock:
            self._engine.warm_up(scores, self._progress)

    def generate(
        self,
        prompts: PromptLike | Sequence[PromptLike],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Continues prompts, batched.

        Args:
          prompts: one or many of: a text, token ids, {"prompt": text}, {"prompt_token_ids": ids}.
          sampling_params: one for all, one each, or None for the checkpoint's defaults.

        Returns:
          one result per prompt, in order.

        Raises:
          RequestError: a prompt or a setting can't be served; nothing has run then.
          EngineError: a launch failed on the device.
        """
        listed = as_list(prompts)
        params = self._params_for(listed, sampling_params)
        jobs = [
            self._job(self._prompt(prompt), own) for prompt, own in zip(listed, params, strict=True)
        ]
        for _ in self._run([sample for job in jobs for sample in job.samples], streaming=False):
            pass
        return [job.output(self.tokenizer) for job in jobs]

    def stream(
        self, prompt: PromptLike, sampling_params: SamplingParams | None = None
    ) -> Iterator[StreamDelta]:
        """Continues one prompt and yields text as it comes; the last delta carries the whole result.

        Leaving the iterator early ends the request.

        Raises: as `generate`; n must be 1.
        """
        params = self._params_for([prompt], sampling_params)[0]
        if params.n != 1:
            raise RequestError(f"n is {params.n}; a stream has one sample: use generate, or n=1.")
        job = self._job(self._prompt(prompt), params)
        return self._stream(job)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answers one conversation or several. Arguments and errors as `generate` and `ChatTemplate.render`."""
        several = isinstance(messages, list | tuple) and all(
            isinstance(each, list | tuple) for each in messages
        )
        conversations: Sequence[Any] = messages if several and messages else [messages]
        prompts = [self._render(each, tools, chat_template_kwargs) for each in conversations]
        return self.generate(prompts, sampling_params)

    def chat_stream(
        self,
        messages: Messages,
        sampling_params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> Iterator[StreamDelta]:
        """`stream` for one conversation."""
        return self.stream(self._render(messages, tools, chat_template_kwargs), sampling_params)

    def stats(self) -> dict[str, Any]:
        """Counters of this engine so far: compiles and their seconds, launches, decode steps, prompt tokens prefilled (once
        for the samples of a prompt that start together), tokens generated, routes."""
        engine = self._engine
        return {
            "compiles": engine.programs.compiles,
            "compile_seconds": engine.programs.compile_seconds,
            "launches": engine.statistics.launches,
            "decode_steps": engine.statistics.decode_steps,
            "prefilled_tokens": engine.prefilled,
            "generated_tokens": engine.statistics.delivered,
            "speculation": engine.statistics.summary(),
            "routes": [f"{r.operator} {r.descriptor}: {r.route.explain()}" for r in routes()],
        }

    def _render(
        self,
        messages: Messages,
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any] | None,
    ) -> str:
        if self.chat_template is None:
            raise RequestError(
                "the checkpoint has no chat template: add chat_template.jinja to its folder, or use generate."
            )
        return self.chat_template.render(messages, tools=tools, chat_template_kwargs=variables)

    def _params_for(
        self, prompts: Sequence[Any], given: SamplingParams | Sequence[SamplingParams] | None
    ) -> Sequence[SamplingParams]:
        if given is None or isinstance(given, SamplingParams):
            return [given or self.default_sampling_params] * len(prompts)
        if not isinstance(given, list | tuple) or not all(
            isinstance(each, SamplingParams) for each in given
        ):
            raise RequestError(
                f"sampling_params is {shown(given)}; a SamplingParams or a list of them is needed."
            )
        if len(given) != len(prompts):
            raise RequestError(
                f"{len(given)} sampling_params for {len(prompts)} prompts; give one, or one for each prompt."
            )
        return given

    def _prompt(self, prompt: PromptLike) -> Prompt:
        return as_prompt(prompt, self.tokenizer, self._engine.options.vocab_size)

    def _job(self, prompt: Prompt, params: SamplingParams) -> "_Job":
        with self._lock:
            request_id = str(self._count)
            self._count += 1
            samples = [self._sample(request_id, prompt, own) for own in params.samples()]
        for sample in samples:
            self._engine.scheduler.check(sample.request)
        return _Job(request_id, prompt.text, samples)

    def _sample(self, request_id: str, prompt: Prompt, params: SamplingParams) -> Sample:
        room = self.max_model_len - len(prompt.ids)
        new = room if params.max_tokens is None else min(params.max_tokens, room)
        seed = params.seed if params.seed is not None else self._fresh_seed()
        row = request_row(
            params,
            self.tokenizer.eos_ids,
            seed=seed,
            prompt_length=len(prompt.ids),
            vocab_size=self._engine.options.vocab_size,
        )
        request = Request(request_id, prompt.ids, params, row, len(prompt.ids) + new)
        request.pace = self._engine.pace(params.drafts)
        return Sample(request, self.tokenizer, self.tokenizer.eos_ids)

    def _fresh_seed(self) -> int:
        return int(self._seeds.spawn(1)[0].generate_state(1, np.uint64)[0])

    def _stream(self, job: "_Job") -> Iterator[StreamDelta]:
        # Closed here and now when the reader leaves: garbage collection may come later (it does on Python 3.12).
        with closing(self._run(job.samples, streaming=True)) as run:
            for _, delta in run:
                output = job.output(self.tokenizer) if delta.finished else None
                yield StreamDelta(
                    delta.text, delta.token_ids, delta.logprobs, delta.finished, output
                )

    def _run(
        self, samples: Sequence[Sample], streaming: bool
    ) -> Generator[tuple[Sample, StreamDelta], None, None]:
        """Drives the engine until these samples have ended; whatever happens, none of them stays behind."""
        try:
            with self._lock:
                for sample in samples:
                    self._engine.add(sample.request)
            while not all(sample.told for sample in samples):
                yield from self._news(samples, streaming)
        finally:
            with self._lock:
                for sample in samples:
                    self._engine.abort(sample.request)

    def _news(self, samples: Sequence[Sample], streaming: bool) -> list[tuple[Sample, StreamDelta]]:
        """What these samples have to tell. Runs a launch, for all requests, only if it is nothing so far."""
        with self._lock:
            if not any(sample.has_news for sample in samples):
                self._engine.step(streaming)
            news = [(sample, sample.advance()) for sample in samples if sample.has_news]
            for sample, _ in news:
                if sample.finished:
                    self._engine.abort(sample.request)
            return news


class _Job:
    """One prompt with its samples."""

    def __init__(self, request_id: str, text: str | None, samples: list[Sample]) -> None:
        self.request_id, self.text, self.samples = request_id, text, samples

    def output(self, tokenizer: Tokenizer) -> RequestOutput:
        return request_output(self.request_id, self.text, self.samples, tokenizer)
