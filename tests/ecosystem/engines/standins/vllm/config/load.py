from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True)  # other fields lie between the genuine ones
class LoadConfig:
    load_format: str = "auto"
    model_loader_extra_config: dict[str, Any] = field(default_factory=dict)
    device: str | None = None
