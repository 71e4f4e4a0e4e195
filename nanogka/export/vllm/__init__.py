"""A plugin of vLLM that serves every exported model without running code of its folder. See docs/serving.md.

vLLM calls `register` through the entry point `vllm.general_plugins` in each of its processes.
"""

TESTED = ("0.32.0",)  # the first is the version that documents and CI install


def register() -> None:
    """Make the exported network and its tool parser known to vLLM; warn if this vLLM is not a tested one."""
    import vllm
    from vllm.logger import init_logger
    from vllm.tool_parsers import ToolParserManager

    from nanogka.export.register import register_with_transformers

    version = vllm.__version__.split("+")[0]
    if version not in TESTED:
        tested = ", ".join(TESTED)
        init_logger("vllm.nanogka").warning("vLLM is %s, but nanogka was tested with %s", version, tested)
    register_with_transformers()
    vllm.ModelRegistry.register_model("NanogkaForCausalLM", "nanogka.export.vllm.model:NanogkaForCausalLM")
    ToolParserManager.register_lazy_module("nanogka", "nanogka.export.vllm.tools", "CalculatorToolParser")
