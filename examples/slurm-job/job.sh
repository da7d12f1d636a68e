#!/bin/bash
#SBATCH --nodes=4 --exclusive --signal=B:TERM@60 --requeue --output=train.out
holmes probe --links
holmes plan job.yaml
exec holmes launch plan.json --resume --from-scratch
