"""What a fetched payload must be like before it counts as held (R4)."""

from collections.abc import Callable

from psyche.core.plan import TransformPlan, decode_plan
from psyche.errors import WireError


def _validate(plan: TransformPlan, body: bytes) -> None:
    from psyche.modeling.distro.codec import validate_payload  # NumPy: not needed before the first payload

    validate_payload(plan, body)


class PayloadCheck:
    """R4: canonical order, index ranges, finite values, exact length; without torch.

    Args:
        validate: refuses a body that breaks the plan's format; raises WireError.
    """

    def __init__(self, validate: Callable[[TransformPlan, bytes], None] = _validate) -> None:
        self._plan: TransformPlan | None = None
        self._validate = validate

    def set_plan(self, plan: bytes) -> None:
        """The plan of the loaded model."""
        self._plan = decode_plan(plan)

    def __call__(self, body: bytes) -> None:
        """Refuse a body that breaks the format.

        Raises:
            WireError: naming group, field and rule.
        """
        if self._plan is None:
            raise WireError("payload: the model's plan is not known yet")
        self._validate(self._plan, body)
