"""What gdrpy.vllm uses of vLLM, and no more: it is as strict as the genuine 0.25.1, which needs a
GPU. Only conftest.py puts it on the path; test_vllm_seams.py compares the
two.
"""

__version__ = "0.25.1"
