"""Command lines of well-known projects, from their pages in 2026, without line breaks."""

from typing import NamedTuple


class Pasted(NamedTuple):
    """A command line and the page that has it."""

    page: str
    """On github.com."""
    line: str
    """For a shell; ``setup`` sets its variables, as on the page or with made-up values."""
    setup: str = ""


NANOCHAT = "NPROC_PER_NODE=8; WANDB_RUN=dummy"

MEGATRON = """
GPUS_PER_NODE=8
MASTER_ADDR=localhost
MASTER_PORT=6000
NUM_NODES=1
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --master_addr $MASTER_ADDR
    --master_port $MASTER_PORT
)
GPT_MODEL_ARGS=(--num-layers 96 --hidden-size 12288 --attention-backend auto)
TRAINING_ARGS=(--rampup-batch-size 16 16 5859375 --fp16 --lr 6.0e-5 --lr-warmup-fraction .001)
"""

LINES = (
    Pasted(
        "karpathy/nanoGPT README.md",
        "torchrun --standalone --nproc_per_node=8 train.py config/train_gpt2.py",
    ),
    Pasted(
        "karpathy/nanoGPT README.md, the first node",
        "torchrun --nproc_per_node=8 --nnodes=2 --node_rank=0 --master_addr=123.456.123.456"
        " --master_port=1234 train.py",
    ),
    Pasted(
        "karpathy/nanoGPT README.md, the other node",
        "torchrun --nproc_per_node=8 --nnodes=2 --node_rank=1 --master_addr=123.456.123.456"
        " --master_port=1234 train.py",
    ),
    Pasted(
        "KellerJordan/modded-nanogpt run.sh",
        "torchrun --standalone --nproc_per_node=1 train_gpt.py",
    ),
    Pasted(
        "karpathy/nanochat speedrun.sh, pretraining",
        "torchrun --standalone --nproc_per_node=$NPROC_PER_NODE -m scripts.base_train --"
        " --depth=20 --target-param-data-ratio=20 --run=$WANDB_RUN",
        NANOCHAT,
    ),
    Pasted(
        "karpathy/nanochat speedrun.sh, evaluation",
        "torchrun --standalone --nproc_per_node=$NPROC_PER_NODE -m scripts.base_eval",
        NANOCHAT,
    ),
    Pasted(
        "karpathy/nanochat speedrun.sh, evaluation of the chat",
        "torchrun --standalone --nproc_per_node=$NPROC_PER_NODE -m scripts.chat_eval -- -i sft",
        NANOCHAT,
    ),
    Pasted(
        "pytorch/torchtitan multinode_trainer.slurm",
        "srun torchrun --nnodes 4 --nproc_per_node 8 --rdzv_id 101 --rdzv_backend c10d"
        ' --rdzv_endpoint "$head_node_ip:29500" -m torchtitan.train --module ${MODULE}'
        ' --config ${CONFIG} "$@"',
        "head_node_ip=10.0.0.1; MODULE=llama3; CONFIG=llama3_debugmodel",
    ),
    Pasted(
        "meta-llama/llama README.md, chat",
        "torchrun --nproc_per_node 1 example_chat_completion.py --ckpt_dir llama-2-7b-chat/"
        " --tokenizer_path tokenizer.model --max_seq_len 512 --max_batch_size 6",
    ),
    Pasted(
        "meta-llama/llama README.md, text",
        "torchrun --nproc_per_node 1 example_text_completion.py --ckpt_dir llama-2-7b/"
        " --tokenizer_path tokenizer.model --max_seq_len 128 --max_batch_size 4",
    ),
    Pasted(
        "mlfoundations/open_clip README.md, one node",
        "torchrun --nproc_per_node 4 -m training.main"
        " --train-data '/data/cc12m/cc12m-train-{0000..2175}.tar' --train-num-samples 10968539"
        " --dataset-type webdataset --batch-size 320 --precision amp --workers 4"
        " --imagenet-val /data/imagenet/validation/",
    ),
    Pasted(
        "mlfoundations/open_clip README.md, several nodes",
        "torchrun --nproc_per_node=4 --rdzv_endpoint=$HOSTE_NODE_ADDR -m training.main"
        " --train-data '/data/cc12m/cc12m-train-{0000..2175}.tar' --train-num-samples 10968539",
        "HOSTE_NODE_ADDR=node1.example.com:29400",
    ),
    Pasted(
        "pytorch/vision references/classification/README.md, ResNext",
        "python -m torch.distributed.launch --nproc_per_node=8 --use_env train.py"
        " --model resnext50_32x4d --epochs 100",
    ),
    Pasted(
        "pytorch/vision references/classification/README.md, MobileNetV2",
        "python -m torch.distributed.launch --nproc_per_node=8 --use_env train.py"
        " --model mobilenet_v2 --epochs 300 --lr 0.045 --wd 0.00004 --lr-step-size 1"
        " --lr-gamma 0.98",
    ),
    Pasted(
        "open-mmlab/mmdetection tools/dist_train.sh",
        "python -m torch.distributed.launch --nproc_per_node=2 --master_port 306 tools/train.py"
        " --config configs/faster_rcnn_kd/faster_rcnn_r50_c4_1x_value_half.py --seed 0"
        " --work-dir result/faster_rcnn_value_half_pre --launcher pytorch",
    ),
    Pasted(
        "open-mmlab/mmsegmentation tools/dist_train.sh",
        "python -m torch.distributed.launch --nproc_per_node=$GPUS --master_port=$PORT"
        " tools/train.py $CONFIG --launcher pytorch --work_dir $WORK_DIR",
        "CONFIG=configs/ocrnet.py; GPUS=8; PORT=${PORT:-29500}; WORK_DIR=./work_dirs/$CONFIG",
    ),
    Pasted(
        "huggingface/transformers examples/pytorch/README.md",
        "python -m torch.distributed.launch --nproc_per_node 8"
        " pytorch/text-classification/run_glue.py"
        " --model_name_or_path bert-large-uncased-whole-word-masking --task_name mnli --do_train"
        " --do_eval --max_seq_length 128 --per_device_train_batch_size 8 --learning_rate 2e-5"
        " --num_train_epochs 3.0 --output_dir /tmp/mnli_output/",
    ),
    Pasted(
        "NVIDIA/Megatron-LM examples/gpt3/train_gpt3_175b_distributed.sh",
        "torchrun ${DISTRIBUTED_ARGS[@]} examples/classes/pretrain_gpt.py"
        " ${GPT_MODEL_ARGS[@]} ${TRAINING_ARGS[@]}",
        MEGATRON,
    ),
    Pasted(
        "NVlabs/edm README.md, sampling",
        "torchrun --standalone --nproc_per_node=2 generate.py --outdir=out --seeds=0-999 --batch=64"
        " --network=https://nvlabs-fi-cdn.nvidia.com/edm/pretrained/edm-cifar10-32x32-cond-vp.pkl",
    ),
    Pasted(
        "NVlabs/edm README.md, FID",
        "torchrun --standalone --nproc_per_node=1 fid.py calc --images=fid-tmp"
        " --ref=https://nvlabs-fi-cdn.nvidia.com/edm/fid-refs/cifar10-32x32.npz",
    ),
    Pasted(
        "NVlabs/edm README.md, training",
        "torchrun --standalone --nproc_per_node=8 train.py --outdir=training-runs"
        " --data=datasets/cifar10-32x32.zip --cond=1 --arch=ddpmpp",
    ),
    Pasted(
        "pytorch/examples distributed/ddp-tutorial-series/slurm/sbatch_run.sh",
        "srun torchrun --nnodes 4 --nproc_per_node 1 --rdzv_id ${job_id} --rdzv_backend c10d"
        " --rdzv_endpoint $head_node_ip:29500 examples/multinode_torchrun.py 50 10",
        "job_id=2024; head_node_ip=10.0.0.1",
    ),
    Pasted(
        "huggingface/pytorch-image-models distributed_train.sh",
        'torchrun --nproc-per-node=$NUM_PROC train.py "$@"',
        "NUM_PROC=4; set -- /data/imagenet --model seresnet34 --sched cosine -b 256 -j 4",
    ),
    Pasted(
        "axolotl-ai-cloud/axolotl docs/multi-node.qmd",
        "torchrun --nnodes $num_nodes --nproc_per_node $gpu_per_node --rdzv_id $rdzv_id"
        ' --rdzv_backend c10d --rdzv_endpoint "$head_node_ip:$head_node_port"'
        " -m axolotl.cli.train config.yaml",
        "num_nodes=2 gpu_per_node=8 rdzv_id=job7 head_node_ip=10.0.0.4 head_node_port=29400",
    ),
    Pasted(
        "facebookresearch/fairseq docs/getting_started.rst",
        "python -m torch.distributed.launch --nproc_per_node=8 --nnodes=2 --node_rank=0"
        ' --master_addr="192.168.1.1" --master_port=12345 $(which fairseq-train)'
        " data-bin/wmt16_en_de_bpe32k --arch transformer_vaswani_wmt_en_de_big"
        " --share-all-embeddings --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 0.0"
        " --lr-scheduler inverse_sqrt --max-tokens 3584 --max-epoch 70 --fp16",
    ),
    Pasted(
        "microsoft/Swin-Transformer get_started.md",
        "python -m torch.distributed.launch --nproc_per_node 8 --master_port 12345  main.py"
        " --cfg configs/swin/swin_tiny_patch4_window7_224.yaml --data-path imagenet"
        " --batch-size 128",
    ),
    Pasted(
        "huggingface/accelerate examples/README.md, one node",
        "torchrun --nproc_per_node 2 ./nlp_example.py",
    ),
    Pasted(
        "huggingface/accelerate examples/README.md, two nodes",
        "torchrun --nproc_per_node 2 --nnodes 2 --rdzv_id 2299 --rdzv_backend c10d"
        " --rdzv_endpoint master_node_ip_address:29500 ./cv_example.py --data_dir path_to_data",
    ),
    Pasted(
        "Lightning-AI/pytorch-lightning docs/source-pytorch/clouds/cluster_intermediate_2.rst, main",
        "torchrun --nproc_per_node=8 --nnodes=2 --node_rank 0 --master_addr 10.10.10.16"
        " --master_port 50000 train.py",
    ),
    Pasted(
        "Lightning-AI/pytorch-lightning docs/source-pytorch/clouds/cluster_intermediate_2.rst, other",
        "torchrun --nproc_per_node=8 --nnodes=2 --node_rank 1 --master_addr 10.10.10.16"
        " --master_port 50000 train.py",
    ),
    Pasted(
        "facebookresearch/detr README.md",
        "python -m torch.distributed.launch --nproc_per_node=8 --use_env main.py"
        " --coco_path /path/to/coco",
    ),
    Pasted(
        "facebookresearch/mae FINETUNE.md",
        "python -m torch.distributed.launch --nproc_per_node=8 main_finetune.py --accum_iter 4"
        " --batch_size 32 --model vit_base_patch16 --finetune ${PRETRAIN_CHKPT} --epochs 100"
        " --blr 5e-4 --layer_decay 0.65 --dist_eval --data_path ${IMAGENET_DIR}",
        "PRETRAIN_CHKPT=mae.pth IMAGENET_DIR=/data/imagenet",
    ),
    Pasted(
        "pytorch/tutorials intermediate_source/ddp_tutorial.rst",
        "torchrun --nnodes=2 --nproc_per_node=8 --rdzv_id=100 --rdzv_backend=c10d"
        " --rdzv_endpoint=$MASTER_ADDR:29400 elastic_ddp.py",
        "MASTER_ADDR=gpu01",
    ),
    Pasted(
        "Wan-Video/Wan2.1 README.md",
        "torchrun --nproc_per_node=8 generate.py --task t2v-14B --size 1280*720"
        " --ckpt_dir ./Wan2.1-T2V-14B --dit_fsdp --t5_fsdp --ulysses_size 8"
        ' --prompt "Two anthropomorphic cats fight intensely on a spotlighted stage."',
    ),
    Pasted(
        "pytorch/pytorch torch/distributed/run.py, stacked jobs",
        "torchrun --rdzv-backend=c10d --rdzv-endpoint=localhost:0 --nnodes=1"
        " --nproc-per-node=$NUM_TRAINERS train.py --arg1",
        "NUM_TRAINERS=4",
    ),
    Pasted(
        "pytorch/pytorch torch/distributed/run.py, fault tolerant",
        "torchrun --nnodes=$NUM_NODES --nproc-per-node=$NUM_TRAINERS --max-restarts=3"
        " --rdzv-id=$JOB_ID --rdzv-backend=c10d --rdzv-endpoint=$HOST_NODE_ADDR train.py --arg1",
        "NUM_NODES=2 NUM_TRAINERS=4 JOB_ID=7 HOST_NODE_ADDR=node1.example.com:29400",
    ),
    Pasted(
        "pytorch/pytorch torch/distributed/run.py, elastic",
        "torchrun --nnodes=1:4 --nproc-per-node=$NUM_TRAINERS --max-restarts=3 --rdzv-id=$JOB_ID"
        " --rdzv-backend=c10d --rdzv-endpoint=$HOST_NODE_ADDR train.py --arg1",
        "NUM_TRAINERS=4 JOB_ID=7 HOST_NODE_ADDR=node1.example.com:29400",
    ),
    Pasted(
        "pytorch/torchtitan run_train.sh",
        'torchrun --nproc_per_node=${NGPU} --rdzv_backend c10d --rdzv_endpoint="localhost:0"'
        " --local-ranks-filter ${LOG_RANK} --role rank --tee 3"
        ' -m torchtitan.train --module ${MODULE} --config ${CONFIG} "$@"',
        "NGPU=8; LOG_RANK=0; MODULE=llama3; CONFIG=llama3_debugmodel; set -- --training.steps 10",
    ),
)
