"""The kernels that TVM's paged KV cache calls, in the order and with the arguments it wants.

Left out are those for sliding windows, token trees and latent attention: no model of ours needs
them, and a browser compiles every kernel of a library when it loads.
"""

from tvm import tirx

from mlc_compile.ops import Attention
from mlc_compile.schedule.kernels.gpu import (
    attention_decode,
    attention_pages,
    attention_prefill,
    merge,
)
from mlc_compile.target import Device


def paged_kv_kernels(
    a: Attention, layers: int, *, dtype: str, page: int, device: Device
) -> dict[str, tirx.PrimFunc]:
    """By what they do; `page` is the tokens of a page, which the runtime must ask for."""
    return {
        "kv_append": attention_pages.append(a, dtype, page, device),
        "kv_attend_new": attention_prefill.ragged(a, dtype, device),
        "kv_attend_pages": attention_prefill.paged(a, dtype, page, device),
        "kv_decode": attention_decode.decode(a, dtype, page, device),
        "kv_merge": merge.merge_state(a.h_q, a.d, dtype, device),
        "kv_rotate": attention_pages.rotate(a, dtype, device),
        "kv_copy_page": attention_pages.copy_page(a, dtype, page, device),
        "kv_read_back": attention_pages.read_back(a, layers, dtype, page, device),
        "kv_compact": attention_pages.compact(a, dtype, page, device),
    }
