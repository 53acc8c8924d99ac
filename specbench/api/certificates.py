"""``specbench.certify``: is a verifier lossless? For a name, an object, or a plain function."""

import inspect
import re
import sys
from collections.abc import Callable
from typing import Any

import torch

from specbench.api.accept import AcceptVerifier, from_accept, takes
from specbench.api.per_request import refuse_history, single_sampling
from specbench.api.verifiers import FunctionVerifier, VerifyFunction, name_of, verifier_of
from specbench.core.checks import check_count, plain_number
from specbench.core.errors import ArgumentError
from specbench.core.machine.devices import choose_device, choose_dtype
from specbench.core.machine.progress import say_in_notebook
from specbench.core.naming import names_arguments
from specbench.core.sampling_params import LARGEST_SEED
from specbench.exactness.certificate import Certificate, certificate_of
from specbench.exactness.inputs import fresh_seed
from specbench.exactness.settings import settings_of
from specbench.exactness.suite import Examination
from specbench.exactness.trials.run import configured_stratum
from specbench.replay.survival import LARGEST_GAMMA
from specbench.rules import RULES, RuleInfo
from specbench.rules.rule import rules_with_formulas
from specbench.rules.verifier import Verifier
from specbench.sampling import SamplingParams
from specbench.sources.parameters import active_params


@names_arguments({"protocol.": ""})
@torch.inference_mode()
def certify(
    verifier: str | Verifier | VerifyFunction,
    suite: str = "quick",
    *,
    rule: str | RuleInfo | None = None,
    lossless: bool | None = None,
    takes_padded: bool | None = None,
    sampling: SamplingParams | None = None,
    gamma: int = 4,
    batch_size: int = 1,
    seed: int = 0,
    inputs_seed: int | None = None,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    report: Callable[[str], None] = say_in_notebook,
    **settings: Any,
) -> Certificate:
    """Examines a verifier and says how far from the target's distribution a step of it can be.

    It runs what ``python -m specbench protocol=exactness`` runs. On two CPU cores the suite "quick" takes about a
    minute, the suite "default" several; on a GPU each call waits for the device, and ``seconds`` and its like bound it.

    Args:
        verifier: a name of conf/verifier, an object with ``rule``, ``lossless`` and ``verify``, or a function
            ``(draft, target, streams) -> Verification`` of
            :class:`specbench.Draft`, :class:`specbench.LogitRows` and :class:`specbench.Streams`.
        suite: "quick", "default" or "deep".
        rule: of a function only, and needed there: "token" or "block" if it follows that rule's formulas with the
            uniforms that these use, or a Rule of your own with formulas; only such code can be called lossless. Any
            other name if not.
        lossless: of a function only: what it claims to be. None is True.
        takes_padded: of a function only: whether it takes drafts in which every request owns as many rows
            (``Draft.padded``). None is False, and D is then drawn without them.
        sampling, gamma, batch_size: conditions under which calls are drawn beside those of D, as you use the verifier.
        seed: of the requests on small fixtures, 0 to 2^63 - 1.
        inputs_seed: of the calls drawn from the input distribution D; None takes a fresh one, which the certificate
            records.
        device: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:N", or a torch.device.
        dtype: of their logits: "auto" (bfloat16 on a GPU, float32 on a CPU), "float32", "bfloat16", "float16", or a
            torch.dtype.
        report: is told what is being done, such as ``print``; by default a line each in a notebook, and nothing
            elsewhere.
        settings: fields of :class:`specbench.exactness.settings.Settings` in the place of the suite's own, such as
            ``draws=10_000`` or ``seconds=60``.

    Returns:
        Certificate: ``verdict`` ("lossless", "not rejected", "not lossless" or "broken"), ``headline``,
        ``tv_upper_bound``, ``bounds``, ``failure`` (the simplest failing example), ``page`` (Markdown), ``json()``.
        Nothing is raised for a verifier that is biased or broken: the verdict says so. A call that hangs in compiled
        code is not interrupted, as it is by the command line.

    Raises:
        ArgumentError: an unknown name, or a function without ``rule``.
        ConfigError: a suite, setting, device or dtype that cannot work.
        CertificateInterrupt: interrupted once. Its attribute ``certificate`` is what was known by then.
        KeyboardInterrupt: interrupted before anything was known, or twice.

    Example:
        >>> import specbench
        >>> certificate = specbench.certify("block")
        >>> print(certificate.headline)  # doctest: +SKIP
        lossless up to 0.0011 a step on the 14 small pairs tried, 0.0029 over D
    """
    chosen = _examined(verifier, rule, lossless, takes_padded)
    gamma, batch_size = check_count("gamma", gamma, 0, LARGEST_GAMMA), check_count("batch_size", batch_size)
    seed = check_count("seed", seed, 0, LARGEST_SEED)
    inputs_seed = fresh_seed() if inputs_seed is None else check_count("inputs_seed", inputs_seed, 0, LARGEST_SEED)
    device, dtype = str(device), str(dtype).removeprefix("torch.")  # as the call that repeats it writes them
    place, conditions = choose_device(device), single_sampling(sampling)
    refuse_history("sampling", conditions, "leave it out: steps are made up, without texts")
    command = _call(
        verifier, suite=suite, seed=seed, inputs_seed=inputs_seed, rule=rule, lossless=lossless,
        takes_padded=takes_padded, sampling=sampling, gamma=gamma, batch_size=batch_size, device=device, dtype=dtype,
        **settings,
    )  # fmt: skip
    interrupted: list[Certificate] = []
    examination = Examination(
        verifier=chosen,
        settings=settings_of(suite, **settings),
        seed=seed,
        device=place,
        inputs_seed=inputs_seed,
        configured=configured_stratum(conditions, gamma, batch_size, choose_dtype(dtype, place)),
        report=report,
        interrupted=lambda _: interrupted.append(certificate_of(*certified)),
    )
    certified = examination, name_of(verifier), suite, command
    try:
        examination.run()
    except KeyboardInterrupt as error:
        raise CertificateInterrupt(interrupted[0]) if interrupted else error from None
    return certificate_of(*certified)


class CertificateInterrupt(KeyboardInterrupt):
    """Raised by ``certify`` when it is interrupted (SIGINT, as Ctrl-C sends it).

    Attributes:
        certificate: what was known by then.
    """

    def __init__(self, certificate: Certificate):
        super().__init__(f"{certificate.headline} (the certificate is this exception's attribute `certificate`)")
        self.certificate = certificate


def _examined(
    verifier: str | Verifier | VerifyFunction,
    rule: str | RuleInfo | None,
    lossless: bool | None,
    takes_padded: bool | None,
) -> Verifier:
    """What is examined; an object is taken as it is, since its certificate says what it lacks."""
    if isinstance(verifier, str | type) or hasattr(verifier, "verify") or not callable(verifier):
        for name, value in (("rule", rule), ("lossless", lossless), ("takes_padded", takes_padded)):
            if value is not None:
                raise ArgumentError(f"{name}={value!r}: given for {name_of(verifier)}, which says itself. Leave it out")
        return verifier_of(verifier)  # ty: ignore[invalid-argument-type]
    if rule is None:
        raise ArgumentError(
            f'rule: missing for the function {name_of(verifier)}. Give rule="token" or rule="block" if it follows '
            "that rule's formulas, else a name of its own"
        )
    if not takes(verifier, 3):
        raise ArgumentError(
            f"verifier: {name_of(verifier)}{inspect.signature(verifier)} is no function (draft, target, streams). Give "
            f"specbench.from_accept({name_of(verifier)}) if it accepts tokens of one request"
        )
    return FunctionVerifier(verifier, rule, True if lossless is None else lossless, bool(takes_padded))


def _call(verifier: str | Verifier | VerifyFunction, **arguments: Any) -> str:
    """Returns the statements that repeat the examination, with the arguments that are not the default ones.

    A function stands under its module's name and its own, and the module is imported. Another object stands as
    ``verifier``: what it was made with is not known here.
    """
    usual = {name: parameter.default for name, parameter in inspect.signature(certify).parameters.items()}
    always = ("suite", "seed", "inputs_seed")  # which every page should have
    shown = [
        f"{key}={_source(value)}" for key, value in arguments.items() if key in always or value != usual.get(key, ...)
    ]
    if isinstance(verifier, AcceptVerifier):
        module, name = _place(verifier.function)
        settings = {"rule": verifier.rule, "lossless": verifier.lossless, "arrays": verifier.arrays}
        usual = {name: parameter.default for name, parameter in inspect.signature(from_accept).parameters.items()}
        different = [f", {key}={_source(value)}" for key, value in settings.items() if value != usual[key]]
        name = f"specbench.from_accept({name}{''.join(different)})"
    else:
        module, name = ("", repr(verifier)) if isinstance(verifier, str) else _place(verifier)
    imports = f"import specbench, {module}\n" if module else ""
    return f"{imports}specbench.certify({name}, {', '.join(shown)})"


def _place(function: object) -> tuple[str, str]:
    """Returns the module that a function is imported from ("" if it is not), and what stands for it in a call."""
    name, module = getattr(function, "__qualname__", ""), getattr(function, "__module__", None) or ""
    if getattr(sys.modules.get(module), name, None) is function and module != "__main__":
        return module, f"{module}.{name}"
    name = getattr(function, "__name__", "")
    return "", name if callable(function) and name.isidentifier() else "verifier"


def _source(value: Any) -> str:
    """Returns an argument as Python source; a Rule of one's own stands under its name."""
    if isinstance(value, SamplingParams):
        changed = active_params(value).items()
        return f"specbench.SamplingParams({', '.join(f'{name}={entry!r}' for name, entry in changed)})"
    if isinstance(value, RuleInfo):
        registered = value in (RULES.get(value.name), rules_with_formulas().get(value.name))
        return repr(value.name) if registered else re.sub(r"\W", "_", value.name)
    return repr(plain_number(value))
