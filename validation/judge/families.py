"""Which causal language models of the installed ``transformers`` a configuration file is read of, and which not.

    python -m validation.judge.families [--json OUT]

Each model type's own default configuration is written as a ``config.json`` and read as a user's would be; none of
those files trains well, but each has the keys that published ones have.  Refusals are shown with their reason; those of
a type that no family reads are told by the class alone.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from pathlib import Path

from validation import command

from triosim.core.errors import InputError
from triosim.sources.modelling import configured

NOT_READ = "no family reads model_type"


def main() -> int:
    """Print the counts and the names."""
    options = command.parser(__doc__).parse_args()
    found = read_types()
    refused = {name: why for name, why in found.items() if why}
    others = {name: why for name, why in refused.items() if NOT_READ not in why}
    print(f"{len(found)} model types, {len(found) - len(refused)} are read, {len(refused)} are not\n")
    _listed("read", [name for name in found if name not in refused])
    _listed("not read", [name for name in refused if name not in others])
    for name, why in others.items():
        print(f"{name}: {why}")
    command.write(options.json, {"types": len(found), "read": len(found) - len(refused)})
    return 0


def read_types() -> dict[str, str]:
    """Model types of the installed ``transformers`` that have a causal language model, and why each is refused."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
            try:
                table = json.loads(CONFIG_MAPPING[name]().to_json_string(use_diff=False))
            except Exception as error:  # a default that its own checks refuse
                found[name] = f"no default configuration: {str(error).splitlines()[0]}"
                continue
            file = Path(folder) / f"{name}.json"
            file.write_text(json.dumps(table), encoding="utf-8")
            try:
                configured(file)
                found[name] = ""
            except InputError as error:
                found[name] = str(error).replace(f"{file}: ", "")
    return found


def _listed(title: str, names: list[str]) -> None:
    print(f"{title} ({len(names)}): {', '.join(names)}\n")


if __name__ == "__main__":
    raise SystemExit(main())
