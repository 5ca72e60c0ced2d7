"""Shell scripts that start Megatron-LM, followed without running them. Compared with bash itself."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from mb_config.megatron_lm.flag_table import MegatronFlagError
from mb_config.megatron_lm.script import read_words
from mb_config.megatron_lm.shell.expansion import evaluate
from mb_config.megatron_lm.shell.interpreter import interpret

RECORD = 'torchrun() { printf "%s\\0" "$@" >&9; }\nexport -f torchrun\n'
"""Function in place of the launcher, which writes its arguments to a file of its own."""


def arguments_in_bash(script, *arguments, cwd):
    """Return the arguments that bash passes to `torchrun` when it runs a script."""
    record = cwd / "arguments"
    subprocess.run(
        ["bash", "-c", f"exec 9>arguments\n{RECORD}{script}", "script.sh", *arguments],
        check=False,
        cwd=cwd,
        capture_output=True,
        env={"PATH": os.environ["PATH"]},
    )
    return record.read_bytes().decode().split("\0")[:-1]


def arguments_here(script, *arguments, path=None):
    """Return the arguments of the last `torchrun` of a script that is followed."""
    found = interpret(script, variables={}, arguments=arguments, path=path)
    return [*next(c for c in reversed(found.commands) if c.words[0] == "torchrun").words[1:]]


SCRIPTS = {
    "arrays": 'A=(--lr 1 "--split 9,1")\nA+=(--bf16)\nB=("${A[@]}" --x "a b")\n'
    'torchrun p.py "${B[@]}" ${A[@]} ${#A[@]} ${A[1]}',
    "index": "A=(a b c)\nA[1]=x\nA[5]=y\ntorchrun p.py ${A[@]} ${A[0]}",
    "keys": 'declare -A L=( [tiny]=2 ["7b"]=32 ); S=7b; L[1b]=16\nB=([0]=x [1]=y); i=1\nC=(a b); C[$i]=c\n'
    'torchrun p.py ${L[$S]} ${L[1b]} "${L["tiny"]}" ${B[1]} ${C[@]}',
    "quotes": 'X=\'a  b\'; Y="c $X"; torchrun p.py $X "$X" \'$X\' "${Y}" a\\ b $\'t\' "q\\"r" \'\'',
    "defaults": 'A=${1:-one}; B=${2-two}; C=${3:+three}; D=${NO:=four}\ntorchrun p.py $A $B "$C" $D $NO ${#A}',
    "positional": 'torchrun p.py $1 "$2" "$@" $# ${2}; shift; torchrun p.py "$@" $1',
    "cuts": "F=/a/b.tar.gz; torchrun p.py ${F##*/} ${F%.*} ${F%%.*} ${F#/a} ${F/b/x} ${F//a/y} ${F:1:3} ${F^^}",
    "tenth": "set -- a b c d e f g h i j; torchrun p.py $10 ${10} ${10}x ${11:-k} ${#10} $1",
    "indirect": "A=x; x=y; torchrun p.py ${!A}",
    "arithmetic": "N=3; G=8; W=$((N*G))\ntorchrun p.py $W $((W/5)) $(((N+1)*2 % 5)) $((N>2 && G==8)) $((-7/2))",
    "test": 'if [ -z "$A" ]; then X=1; else X=2; fi; [[ $X == 1 && -n $X ]] && Y=y\n'
    'if [ "$X" -ge 1 ] || false; then Z=z; fi\n'
    "torchrun p.py $X $Y $Z",
    "patterns": "M=llama3_8b; if [[ $M == llama* ]]; then S=8; fi; [[ $M =~ ([0-9]+)b ]] && T=b; torchrun p.py $S $T",
    "expressions": 'A=(x y); T=x; P="y|x"; [[ " ${A[*]} " =~ " ${T} " ]] && B=1; [[ ! a.b =~ ^a\\.b$ ]] || C=2; '
    '[[ ab =~ a"."b ]] || D=3; '
    "[[ x =~ ^($P)$ && $T =~ ^['x']$ ]] && E=4; torchrun p.py $B $C $D $E",
    "elif": "A=2; if [[ $A -eq 1 ]]; then X=a; elif (( A == 2 )); then X=b; else X=c; fi; torchrun p.py $X",
    "case": 'M=8B\ncase "$M" in\n  "800M") L=1 ;;\n  8B|9B)\n    L=2\n    ;;\n  *) L=3 ;;\nesac\ntorchrun p.py $L',
    "for": 'A=""\nfor n in 1 2 "3 4"; do\n  A="$A --x $n"\ndone\ntorchrun p.py $A',
    "arguments": 'while [[ $# -gt 0 ]]; do\n case $1 in\n --lr) LR="$2"; shift 2 ;;\n *) shift ;;\n esac\n'
    "done\ntorchrun p.py --lr $LR",
    "function": 'f() {\n  local x=$1\n  torchrun p.py "$x" "${@:2}"\n}\nf a b',
    "eval": 'C="torchrun p.py --lr 1"; eval "$C --bf16"',
    "document": "L=2\nbash <<EOF\ntorchrun p.py --lr $L \\$((1+1))\nEOF",
    "continued": "torchrun p.py \\\n  --lr 1 \\\n  --bf16 # a comment\n# torchrun p.py",
    "prefix": "A=1 B=2 torchrun p.py --lr 1",
    "pipe": "torchrun p.py --lr 1 2>&1 | tee log > /dev/null",
    "group": "{ X=1; ( Y=2; torchrun p.py $X $Y ); }",
    "paths": 'S=$(dirname "/a/b/c.sh"); T=`basename /a/b/c.sh`; torchrun p.py $S $T ${S}/$(basename $T)',
    "hash": 'X=a#b; torchrun p.py $X "#c" # d',
    "list in a text": 'A=(--lr 1); B=(--x "a b"); C="torchrun p.py ${A[@]} \\\n ${B[@]} --end"; $C',
    "output of a function": "f() { local n=$1\ncat <<EOF\n --experts ${n}\n --top 2\nEOF\n}\n"
    'g() { echo oops >&2; if [ "$1" = a ]; then echo -n "--a 1"; else printf "%s-%d " x 1 y 2; fi; }\n'
    "torchrun p.py $(f 8) $(g a) $(g b) `# nothing` $(x=5; echo $x)${x-6}",
    "output of a list": 'j() { local IFS=,; echo "$*"; }\nA=(1 2 3); torchrun p.py $(j "${A[@]}") "$(j x y)"',
    "output of commands": "torchrun p.py $(basename /a/b.sh .sh) $(expr 3 \\* 4 + 1) $(seq 2 4) $(seq 5 -2 1) "
    "$(echo -e 'a\\tb') $(cd /usr/bin && cd ../lib >/dev/null 2>&1 && pwd) $(printf '%s%%\\n' 5) "
    "$(true && echo y || echo n)",
    "keys of a list": 'A=(x y); for i in "${!A[@]}"; do R+="$i=${A[$i]} "; done; declare -A M=([k]=v)\n'
    'torchrun p.py $R ${!M[@]} "${M[@]}" ${#M[@]} ${#NOT_SET} ${#A[@]} ${#A} ${A[-1]}',
    "braces": 'for i in {0..2}; do D+=" 1 /d/s_${i}"; done\n'
    "torchrun p.py $D a{x,y}z {3..1} '{0..2}' \"{a,b}\" $'a\\'b'",
    "let": "N=3; let M=N*2; (( K = M + 1 )); ((K += 2)); ((N++)); let 'K = K * 2'; torchrun p.py $M $K $N $((N++)) $N",
    "remote": 'A="--lr 1"; ssh() { shift; bash -c "$*"; }\n'
    'ssh host1 "cd / && torchrun p.py $A --rank \\$((1+1))"',
    "nothing": 'A=(); torchrun p.py "${A[@]}" "" "$@" x"$@"y',
    "read": "read -r -d '' A <<EOF || true\n\n --lr 1 \\\n --bf16\nEOF\nread -r B C <<EOF\n --x  y z\nEOF\n"
    "IFS= read -rd '' D <<'EOF'\n $A\nEOF\nread -d '' E <<'EOF'\na\\\nb\\c\nEOF\n"
    'torchrun p.py "$A" --end "$B" "$C" "$D" "$E"',
    "here-strings": 'read -r A B <<< "1  2 3 "; IFS=, read -ra C <<< "x,,y z,"; IFS=: read D E <<< "a:b:c:"\n'
    'IFS=, read F G <<< " p,q,"; read H < <(echo "8 9"); cat() { :; }\n'
    'torchrun p.py "$A" "$B" "${C[@]}" ${#C[@]} "$D" "$E" "$F" "$G" "$H"',
    "mapfile": 'mapfile -t A <<< "--lr 1\n--bf16"; readarray -t B <<EOF\n--x\n a b\nEOF\n'
    "mapfile -t C < <(printf '%s\\n' --y 'c d'); mapfile <<< z\n"
    'torchrun p.py ${A[@]} "${B[@]}" "${C[@]}" ${MAPFILE[0]} ${#MAPFILE[@]}',
    "lines": 'while read -r N V; do A+=(--$N "$V"); done <<EOF\nlr 1\nsplit 9,1 x\nEOF\n'
    'B=; while IFS== read -r N V; do B="$B --$N $V"; done < <(echo "a=1"; echo "b=2=3")\ntorchrun p.py "${A[@]}" $B',
    "separators": 'B=; L="1,2,,3"; IFS=,; A=($L); for x in $L; do B="$B<$x>"; done; unset IFS\n'
    'torchrun p.py ${#A[@]} "${A[@]}" "$B" $L',
    "subshell": "A=1; B=2; (A=2; exit 3; A=4); { B=3; A=4; } | tee log; (cd /usr; B=$(pwd))\n"
    "{ D=5; }; torchrun p.py $A $B $D $(cd /lib; pwd)",
    "declare": "declare -a A=(1 2); export B=3 C; readonly D=4; torchrun p.py ${A[*]} $B $D",
}


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_arguments_are_those_of_bash(name, tmp_path):
    given = ("--lr", "p q", "r") if name in ("positional", "arguments", "defaults") else ()
    script = SCRIPTS[name]
    expected = arguments_in_bash(script, *given, cwd=tmp_path)
    if name == "positional":
        expected = expected[-5:]
    assert expected, "bash does not start the program"
    found = arguments_here(script, *given)
    assert [word for word in found if word != "\ue000C\ue001"] == expected


def test_a_value_that_is_not_set_is_named_where_it_is_needed():
    script = (
        "DATA_PATH=$1\nRUN=run-$(date +%s)\n"
        "torchrun pretrain_gpt.py --data-path $DATA_PATH --wandb-exp-name $RUN $EXTRA"
    )
    with pytest.raises(
        MegatronFlagError, match=r"without a value: 1, RUN\. Give them with --set 1=VALUE --set RUN=VALUE"
    ):
        read_words(script)
    for given in ({"variables": {"1": "/d", "RUN": "r"}}, {"variables": {"RUN": "r"}, "arguments": ["/d"]}):
        read = read_words(script, **given)
        assert read.words == ("--data-path", "/d", "--wandb-exp-name", "r")
        assert read.notes == ("EXTRA is not set and taken as empty",)
    for flags in (
        "--num-workers $(nproc)",
        "$(nproc)",
        "$(cat flags.txt)",
        "--seed $RANDOM",
        "--seed $((RANDOM%9+1))",
    ):
        with pytest.raises(
            MegatronFlagError,
            match=r"Write the values of \$(\(nproc\)|\(cat flags.txt\)|RANDOM) into the script: nothing is run",
        ):
            read_words(f"torchrun pretrain_gpt.py {flags} --lr 1")


def test_lines_that_are_not_known_are_named():
    for script in ("mapfile -t A < <(nvidia-smi -L)", "readarray -n 2 A <<< x", "read A < no_file"):
        with pytest.raises(MegatronFlagError, match="without a value: A"):
            read_words(f'{script}\ntorchrun pretrain_gpt.py --lr "${{A[@]}}"')


def test_the_output_of_a_file_is_its_text(tmp_path):
    (tmp_path / "blend.txt").write_text("0.3 a\n0.7 b\n")
    (tmp_path / "split").write_text("9,1,0\n")
    script = (
        'HERE=$(dirname "$0"); torchrun p.py --data-path $(cat "$HERE/blend.txt" split) --split $(<split)'
    )
    assert read_words(script, path=tmp_path / "s.sh").words == (
        *("--data-path", "0.3", "a", "0.7", "b", "9,1,0"),
        *("--split", "9,1,0"),
    )
    with pytest.raises(MegatronFlagError, match=r"without a value: \$\(<absent\)"):
        read_words("torchrun p.py --split $(<absent)", path=tmp_path / "s.sh")


def test_values_that_the_script_has_for_unset_variables_are_named():
    script = (
        "N=${NODES:-1}; TP=4; torchrun p.py --lr ${LR:=1} --seed ${TP:-2} $(echo --save ${OUT-x-$N}) ${NO:-}"
    )
    read = read_words(script)
    assert read.words == ("--lr", "1", "--seed", "4", "--save", "x-1")
    assert read.notes[-1] == (
        "not set, so that the default in the script counts: NODES=1, LR=1, OUT=x-1; --set NAME=VALUE for others"
    )
    assert not [note for note in read_words(script, variables={"NODES": "2"}).notes if "NODES" in note]


SBATCH = (
    "#!/bin/bash\n#SBATCH -N 4 --job-name=seven\n#SBATCH --ntasks-per-node=8 # a task for each GPU\n"
    "#SBATCH --gres=gpu:h100:8 --cpus-per-task 4\n#SBATCH it's closed nowhere\n\nsrun python p.py "
    "--global-batch-size $((SLURM_NNODES * SLURM_GPUS_ON_NODE)) --save /$SLURM_JOB_NAME --seed $SLURM_CPUS_PER_TASK"
)


def test_a_batch_script_has_the_nodes_that_it_requests():
    read = read_words(SBATCH)
    assert read.words == ("--global-batch-size", "32", "--save", "/seven", "--seed", "4")
    assert (read.world_size, read.notes) == (32, ())
    smaller = read_words(SBATCH, variables={"SLURM_NNODES": "1"})
    assert (smaller.words[1], smaller.world_size) == ("8", 8)
    nested = f"sbatch <<'EOF'\n{SBATCH.replace('srun python', 'srun torchrun --nproc_per_node $X')}\nEOF"
    assert (read_words(nested).words[1], read_words(nested).world_size) == ("32", None)
    later = "A=1\n#SBATCH -N 4\ntorchrun p.py --seed $SLURM_NNODES"
    with pytest.raises(MegatronFlagError, match="--set SLURM_NNODES=VALUE"):
        read_words(later)


def test_flags_after_a_script_take_precedence():
    script = "torchrun pretrain_gpt.py --lr 1 --data-path $1"
    assert read_words(script, arguments=["/d", "--lr", "2"]).words == (
        "--lr",
        "1",
        "--data-path",
        "/d",
        "--lr",
        "2",
    )
    passes = 'torchrun pretrain_gpt.py --lr 1 "$@"'
    assert read_words(passes, arguments=["--lr", "2"]).words == ("--lr", "1", "--lr", "2")


def test_processes_and_environment_of_a_script():
    script = (
        "export NCCL_ALGO=Ring\nexport WANDB_API_KEY=${WANDB_API_KEY}\nGPUS=8; NODES=$((1+1))\n"
        "OMP_NUM_THREADS=1 torchrun --nproc_per_node $GPUS --nnodes=$NODES pretrain_gpt.py --lr 1"
    )
    read = read_words(script)
    assert (read.program, read.world_size, read.words) == ("pretrain_gpt.py", 16, ("--lr", "1"))
    assert {name: read.environment[name] for name in ("NCCL_ALGO", "OMP_NUM_THREADS")} == {
        "NCCL_ALGO": "Ring",
        "OMP_NUM_THREADS": "1",
    }


@pytest.mark.parametrize(
    "script",
    [
        "docker run --rm --gpus all -e NCCL_ALGO=Ring -v /a:/b image:1 torchrun pretrain_gpt.py --lr 1 --bf16",
        "docker run --env=NCCL_ALGO=Ring image bash -c 'cd /b && torchrun pretrain_gpt.py --lr 1 --bf16'",
        'C="python pretrain_gpt.py --lr 1 --bf16"\nexport NCCL_ALGO=Ring\nsrun -l --container-image x sh -c "${C}"',
        "export NCCL_ALGO=Ring\nsbatch <<EOF\n#!/bin/bash\n#SBATCH --nodes=2\n"
        "srun bash -x -c 'python pretrain_gpt.py --lr 1 --bf16'\nEOF",
        "srun env NCCL_ALGO=Ring python -m my_company.pretrain --lr 1 --bf16",
        "if true; then\n  echo torchrun pretrain_gpt.py --lr 7\n"
        "  NCCL_ALGO=Ring torchrun pretrain_gpt.py --lr 1 --bf16 > log 2>&1\nfi",
    ],
)
def test_the_ways_to_start_a_program(script):
    read = read_words(script)
    assert (read.words, read.environment["NCCL_ALGO"]) == (("--lr", "1", "--bf16"), "Ring")


def test_files_that_a_script_sources_or_starts(tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/model.sh").write_text('MODEL="--num-layers $LAYERS"\n')
    (tmp_path / "inner.sh").write_text("torchrun pretrain_gpt.py $MODEL --lr $1\n")
    outer = tmp_path / "outer.sh"
    outer.write_text(
        'HERE=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)\nexport LAYERS=4\nsource "$HERE/conf/model.sh"\n'
        ". ./missing.sh\nexport MODEL\nsbatch inner.sh 3\n"
    )
    read = read_words(outer.read_text(), path=outer)
    assert read.words == ("--num-layers", "4", "--lr", "3")
    assert read.notes == ("not read: ./missing.sh: no such file",)


def test_conditions_on_files_are_reported_if_variables_depend_on_them():
    script = (
        'A="--lr 1"\nif [ -d /data ]; then A="--lr 2"; fi\nif [ ! -f x ]; then exit 1; fi\n'
        "torchrun pretrain_gpt.py $A"
    )
    read = read_words(script)
    assert read.words == ("--lr", "1")
    assert read.notes == ("not decided, taken as false: [ -d /data ]",)


def test_a_script_that_ends_itself_reports_where():
    script = "if [[ -z $WORKSPACE ]]; then\n  echo set it; exit 1\nfi\ntorchrun pretrain_gpt.py --lr 1"
    with pytest.raises(
        MegatronFlagError, match=r"the script ends where \[\[ -z \$WORKSPACE \]\]\. Set its variables"
    ):
        read_words(script)
    assert read_words(script, variables={"WORKSPACE": "/w"}).words == ("--lr", "1")


def test_a_script_that_does_not_know_its_argument_reports_which():
    script = (
        'case $1 in --data) D=$2 ;; *) echo "unknown option"; exit 1 ;; esac\ntorchrun pretrain_gpt.py --lr 1'
    )
    with pytest.raises(MegatronFlagError, match=r"the script ends where \$1 is --num-layers\."):
        read_words(script, arguments=["--num-layers", "2"])


def test_a_file_of_flags_alone():
    read = read_words(
        'MODEL_ARGS=" \\\n  --num-layers 2 \\\n  --swiglu \\\n"\nOTHER=1\n', arguments=["--mock-data"]
    )
    assert read.words == ("--num-layers", "2", "--swiglu", "--mock-data")
    assert read.notes == ("the script starts no program: the flags of MODEL_ARGS are read",)


def test_a_variable_with_a_command_line_is_read_without_those_that_it_contains():
    script = 'FLAGS="--lr 1 --bf16"\nLINE="torchrun --nnodes 2 pretrain_gpt.py $FLAGS"'
    assert read_words(script).words == ("--lr", "1", "--bf16")


@pytest.mark.parametrize(
    "line",
    [
        'ssh -p 22 host "cd /x && torchrun pretrain_gpt.py --lr 1"',
        'sbatch -N 2 --wrap="srun torchrun pretrain_gpt.py --lr 1"',
        "pdsh -w hosts \"docker run image bash -c 'torchrun pretrain_gpt.py --lr 1'\"",
    ],
)
def test_command_lines_in_quotations(line):
    assert read_words(f"echo x\n{line}").words == ("--lr", "1")


@pytest.mark.parametrize(
    "command",
    [
        "date",
        "echo x | tr x y",
        "[ -f x ] && echo y",
        "if [ -f x ]; then echo y; fi",
        "cat file",
        "< file",
        "printf %03d 5",
        "nproc; echo 1",
        "basename a b c",
        "expr a",
        "seq 1 0.1 2",
        "printf -v X %s 1",
        "echo 'a",
    ],
)
def test_an_output_that_is_not_known(command):
    with pytest.raises(MegatronFlagError, match=r"variables without a value: |is not closed"):
        read_words(f"torchrun pretrain_gpt.py --lr $({command})")


def test_of_several_programs_the_one_with_the_flags_of_training():
    script = (
        "python tools/prepare.py --input x\npython pretrain_gpt.py --lr 1 --bf16\npython report.py --title x"
    )
    assert read_words(script).program == "pretrain_gpt.py"


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("pretrain_bert.py", "trains BERT"),
        ("pretrain_ict.py", "retrieval"),
        ("pretrain_vision_classify.py", "vision model"),
        ("examples/multimodal/train.py", "vision-language"),
        ("examples/mimo/pretrain_mimo.py", "vision-language"),
        ("train_rl.py", "reinforcement learning"),
        ("tools/run_text_generation_server.py", "generates text"),
        ("tools/preprocess_data.py", "mb data build"),
        ("tools/checkpoint/convert.py", "mb import-hf"),
        ("tasks/main.py", "mb lm-eval"),
        ("examples/post_training/modelopt/quantize.py", "ModelOpt"),
    ],
)
def test_programs_that_train_no_model_of_this_project(program, reason):
    with pytest.raises(MegatronFlagError, match=reason):
        read_words(f"torchrun {program} --lr 1 --num-layers 2")


@pytest.mark.parametrize("program", ["finetune.py", "src/export.py", "pretrain_lab.py"])
def test_programs_of_the_user_pass(program):
    assert read_words(f"torchrun {program} --lr 1").words == ("--lr", "1")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("if true; then\n x", "line 2: fi is missing"),
        ("A=(--lr 1\n", "is not closed"),
        ('torchrun p.py "--lr', 'line 1: " is not closed'),
        ("for x in 1; do\n echo\n", "done is missing"),
        ("x\n}\n", "line 2: unexpected '}'"),
    ],
)
def test_scripts_that_are_not_closed(script, message):
    with pytest.raises(MegatronFlagError, match=message):
        read_words(script)


@pytest.mark.parametrize("expression", ["a.b", "f(1)", "'x'", "1 if 2 else 3", "1 < 2 < 3"])
def test_what_is_no_arithmetic(expression):
    with pytest.raises(ValueError, match="not part of an arithmetic expression"):
        evaluate(expression)


def test_nothing_is_run(tmp_path):
    target = tmp_path / "file"
    script = (
        f"touch {target}; echo x > {target}; X=$(touch {target}); eval 'touch {target}'; torchrun p.py --lr 1"
    )
    assert read_words(script, path=Path(tmp_path / "s.sh")).words == ("--lr", "1")
    assert not target.exists()


def test_a_script_without_an_end_ends():
    assert read_words(
        "while true; do sleep 1; done\nf() { f; }\nf\ntorchrun pretrain_gpt.py --lr 1"
    ).words == ("--lr", "1")
