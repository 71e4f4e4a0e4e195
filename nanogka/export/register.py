"""Register the exported classes with an installed transformers, so that no code of an exported folder runs."""


def register_with_transformers() -> None:
    """Register the exported network with the Auto classes. Do nothing if transformers is not installed."""
    try:
        from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification
    except ImportError:
        return
    from nanogka.export.remote_code import modeling_nanogka as modeling
    from nanogka.export.remote_code.configuration_nanogka import NanogkaConfig

    AutoConfig.register(NanogkaConfig.model_type, NanogkaConfig, exist_ok=True)
    AutoModel.register(NanogkaConfig, modeling.NanogkaModel, exist_ok=True)
    AutoModelForCausalLM.register(NanogkaConfig, modeling.NanogkaForCausalLM, exist_ok=True)
    classifier = modeling.NanogkaForSequenceClassification
    AutoModelForSequenceClassification.register(NanogkaConfig, classifier, exist_ok=True)
