"""Making exported folders known to an installed transformers, so that it runs our code and not the folder's."""


def register_with_transformers() -> None:
    """Register the exported network with the Auto classes; nothing where transformers is not installed."""
    try:
        from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
    except ImportError:
        return
    from nanogka.export.remote_code.configuration_nanogka import NanogkaConfig
    from nanogka.export.remote_code.modeling_nanogka import NanogkaForCausalLM, NanogkaModel

    AutoConfig.register(NanogkaConfig.model_type, NanogkaConfig, exist_ok=True)
    AutoModel.register(NanogkaConfig, NanogkaModel, exist_ok=True)
    AutoModelForCausalLM.register(NanogkaConfig, NanogkaForCausalLM, exist_ok=True)
