"""Small tables of published runs for the tests."""

from pathlib import Path

from trivium.planner.published_rows import DEGREES, DEVICES

# A run of Megatron-LM on Selene (Narayanan et al., SC'21, arXiv 2104.04473, table 1), and an FSDP run of llm-foundry.
HEADER = (
    "src,cluster,gpu,n_gpus,node,L,h,a,kv,ffn,gated,s,V,tp,pp,v,dp,cp,mbs,gbs,recompute,sp,zero,attn,dtype,fw,"
    "dp_overlap,tie_balance,iter_s,tflops_rep,mem_gb,quality,note"
)
MEGATRON = (
    "sc21_t1,selene,a100-80,512,8,48,8192,64,64,32768,0,2048,51200,8,2,1,32,1,4,1536,full,0,0,unfused,fp16,megatron,"
    "0,0,14.4535,138,,A,"
)
FSDP = (
    "mpt_h100,mosaic-h100,h100,8,8,32,2560,20,20,10240,0,4096,50368,1,1,1,8,1,5,240,none,0,3,flash,bf16,fsdp,1,0,"
    "5.86148,418.6,,A-,amp_bf16"
)
B200 = (
    "simumax_b200,b200-node,b200,8,8,12,8192,64,8,28672,1,4096,128256,8,1,1,1,1,1,4,none,1,1,flash,bf16,mcore-noov,0,"
    "0,0.2809,,28.29,A,"
)
# DeepSpeed's ZeRO-3 on Selene (SC'21, table 2), at three sizes.
ZERO3 = tuple(
    f"sc21_t2_zero3,selene,a100-80,{n},8,{layers},{hidden},{heads},{heads},{4 * hidden},0,2048,51200,1,1,1,{n},1,"
    f"{micro},{batch},full,0,3,unfused,fp16,deepspeed,1,0,{seconds},,,B,"
    for n, layers, hidden, heads, micro, batch, seconds in (
        (384, 96, 12288, 96, 4, 1536, 81.58),
        (1536, 96, 12288, 96, 1, 1536, 66.75),
        (1120, 105, 20480, 128, 2, 2240, 179.9),
    )
)


def changed(row: str, **values: object) -> str:
    """A row with some columns replaced; it no longer says on how many devices where its degrees are others."""
    if set(values) & set(DEGREES):
        values = {DEVICES: ""} | values
    texts = dict(zip(HEADER.split(","), row.split(","), strict=True)) | {k: str(v) for k, v in values.items()}
    return ",".join(texts.values())


def written(folder: Path, *rows: str, name: str = "runs.csv") -> Path:
    """A file with these rows."""
    path = folder / name
    path.write_text("\n".join([HEADER, *rows]) + "\n", encoding="utf-8")
    return path
