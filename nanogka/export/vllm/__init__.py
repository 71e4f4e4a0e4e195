"""A plugin of vLLM that serves every exported model without running code of its folder. See docs/serving.md.

vLLM calls `register` through the entry point `vllm.general_plugins` in each of its processes.
"""

TESTED = "0.32.0"


def register() -> None:
    """Make the exported network known to vLLM and to transformers; warn if this vLLM is not the tested one."""
    import vllm
    from vllm.logger import init_logger

    from nanogka.export.register import register_with_transformers

    version = vllm.__version__.split("+")[0]
    if version != TESTED:
        init_logger("vllm.nanogka").warning("vLLM is %s, but nanogka was tested with %s", version, TESTED)
    register_with_transformers()
    vllm.ModelRegistry.register_model("NanogkaForCausalLM", "nanogka.export.vllm.model:NanogkaForCausalLM")
