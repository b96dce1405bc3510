"""The prepared optimizer: steps at a window's end alone, and says whether it did."""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..errors import UsageError
from ..structures import send_to_device
from .window import AccumulationWindows


class PreparedOptimizer(torch.optim.Optimizer):
    """Wraps an optimizer; all that is not defined here is the wrapped one's.

    Args:
        windows: decide whether step() steps and zero_grad() clears.
        scaler: unscales gradients and skips a step that overflowed; None without one.
        before_step: called before a real step.
        after_step: called after it with (this optimizer, skipped).
        drop_gradients: forgets gradients that are not in `grad` yet.
        step: the strategy's: (optimizer, closure) -> (result, skipped); None steps the optimizer itself.
        zero_grad: the strategy's: (optimizer, *, set_to_none); None clears through the optimizer itself.
        update_scale: called after a step with a scaler; None updates the scaler at once.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        windows: AccumulationWindows,
        scaler: torch.amp.GradScaler | None,
        before_step: Callable[[], None],
        after_step: Callable[["PreparedOptimizer", bool], None],
        drop_gradients: Callable[[Iterable[torch.nn.Parameter]], None] | None = None,
        step: Callable[..., tuple[Any, bool]] | None = None,
        zero_grad: Callable[..., None] | None = None,
        update_scale: Callable[[], None] | None = None,
    ) -> None:
        # No super().__init__: groups and state are the wrapped optimizer's.
        self.optimizer = optimizer
        self.num_steps = 0
        self.num_skipped = 0
        self.skipped_in_a_row = 0
        self.step_was_skipped = False
        self._windows = windows
        self._scaler = scaler
        self._before_step = before_step
        self._after_step = after_step
        self._drop_gradients = drop_gradients
        self._step = step
        self._zero_grad = zero_grad
        self._update_scale = update_scale if update_scale is not None else getattr(scaler, "update", None)
        self._cleared_at = 0
        self._stepped = False
        self._unscaled = False

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One optimizer step at the end of the accumulation window; elsewhere nothing happens.

        With a scaler, a step whose gradients overflowed changes nothing and sets step_was_skipped.
        """
        if not self._windows.sync_gradients:
            return None
        self._before_step()
        # Without gradients the scaler has nothing to look at, and the optimizer nothing to do.
        scaled = self._scaler is not None and (closure is not None or any(self._gradients()))
        if scaled:
            result = self._scaled_step(closure)
        elif self._step is not None:
            result, self.step_was_skipped = self._step(self.optimizer, closure)
        else:
            result, self.step_was_skipped = self.optimizer.step(closure), False
        self._stepped, self._unscaled = True, False
        if scaled and self._update_scale is not None:
            self._update_scale()
        if self.step_was_skipped:
            self.num_skipped += 1
            self.skipped_in_a_row += 1
        else:
            self.num_steps += 1
            self.skipped_in_a_row = 0
        self._after_step(self, self.step_was_skipped)
        return result

    def zero_grad(self, set_to_none: bool = True, *, discard: bool = False) -> None:
        """Clear the gradients, unless they are part of an accumulation window that has not stepped yet.

        Args:
            discard: clear them even then.
        """
        if not discard and self._windows.protects(cleared_at=self._cleared_at, stepped=self._stepped):
            return
        if self._zero_grad is None:
            self.optimizer.zero_grad(set_to_none=set_to_none)
        else:
            self._zero_grad(self.optimizer, set_to_none=set_to_none)
        if self._drop_gradients is not None:
            self._drop_gradients(p for group in self.optimizer.param_groups for p in group["params"])
        self._windows.forget_left_over(p for group in self.optimizer.param_groups for p in group["params"])
        self._cleared_at = self._windows.backward_count
        self._stepped = self._unscaled = False

    def unscale(self) -> None:
        """Divide the gradients by the loss scale, once before a step; inside a window nothing happens.

        Raises:
            UsageError: they are no gradients of a scaled loss, or float16 ones.
        """
        if self._scaler is None or self._unscaled or not self._windows.sync_gradients or not any(self._gradients()):
            return
        self._require_scaled()
        self._scaler.unscale_(self.optimizer)
        self._unscaled = True

    @property
    def is_unscaled(self) -> bool:
        """Whether its gradients were divided by the loss scale and wait for its step."""
        return self._unscaled

    @property
    def has_waiting_gradients(self) -> bool:
        """Whether a backward has added to gradients that no step has used yet."""
        return not self._stepped and self._windows.backward_count > self._cleared_at

    def expect_gradients(self, waiting: bool) -> None:
        """Take it that the gradients are those of a backward before this step (or not)."""
        self._cleared_at = self._windows.backward_count - waiting
        self._stepped = self._unscaled = False

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state_dict)

    def move_state(self, device: torch.device) -> None:
        """Bring states made before prepare() to the device of the parameters."""
        for parameter, state in self.optimizer.state.items():
            self.optimizer.state[parameter] = send_to_device(state, device) if device.type != "cpu" else state

    def train(self) -> None:
        """For schedule-free optimizers."""
        if hasattr(self.optimizer, "train"):
            self.optimizer.train()

    def eval(self) -> None:
        """For schedule-free optimizers."""
        if hasattr(self.optimizer, "eval"):
            self.optimizer.eval()

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.optimizer.param_groups = groups

    @property
    def state(self) -> Any:
        return self.optimizer.state

    @state.setter
    def state(self, state: Any) -> None:
        self.optimizer.state = state

    @property
    def defaults(self) -> dict[str, Any]:
        return self.optimizer.defaults

    @defaults.setter
    def defaults(self, defaults: dict[str, Any]) -> None:
        self.optimizer.defaults = defaults

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __repr__(self) -> str:
        return f"PreparedOptimizer({self.optimizer!r})"

    def _scaled_step(self, closure: Callable[[], Any] | None) -> Any:
        assert self._scaler is not None, "step() asks first"
        if closure is not None:
            raise UsageError(
                f"{type(self.optimizer).__name__}.step(closure) under fp16: its scaler looks at gradients first",
                allowed="step() without a closure there",
                next_step="use mixed_precision='bf16' or 'no' with an optimizer that needs a closure",
            )
        if not self._unscaled:
            self._require_scaled()
        result = self._scaler.step(self.optimizer)
        # What a fused optimizer looks at too; the scale falls only with the scaler's next update.
        found = self._scaler._found_inf_per_device(self.optimizer)
        self.step_was_skipped = any(bool(value.item()) for value in found.values())
        return result

    def _require_scaled(self) -> None:
        """Before they are divided by the loss scale: each backward multiplies by it, and so must what made them."""
        if not self._stepped and not self.has_waiting_gradients:
            raise UsageError(
                "gradients under fp16 that no accelerator.backward() made: their loss was not scaled",
                allowed="accelerator.backward(loss)",
                next_step="call it instead of loss.backward(), or use mixed_precision='bf16'",
            )
        held = (p for group in self.optimizer.param_groups for p in group["params"])
        half = sum(p.grad is not None and p.grad.dtype is torch.float16 for p in held)
        if half:
            raise UsageError(
                f"{half} gradients are float16, which the loss scaler cannot unscale",
                allowed="float32 parameters under mixed_precision='fp16'",
                next_step="leave out model.half(), and load the weights in float32",
            )

    def _gradients(self) -> list[bool]:
        return [p.grad is not None for group in self.optimizer.param_groups for p in group["params"]]
