"""Public names of the package, and the imports that it triggers."""

import subprocess
import sys

import mb_guard


def test_public_names_resolve():
    assert sorted(mb_guard.__all__) == mb_guard.__all__


def test_nothing_imports_torch_before_megatron():
    script = (
        "import mb_guard, sys; mb_guard.install(quiet=True); mb_guard.status(); import mb_guard.doctor; "
        "print({'torch', 'megatron.core', 'transformer_engine'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_module_installs_when_it_is_imported():
    script = "import mb_guard.auto, mb_guard; print(mb_guard.auto.REPORT == mb_guard.status())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_the_first_rank_prints_one_line():
    script = "import mb_guard; mb_guard.install(); mb_guard.install()"
    lines = [
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True, env={"RANK": rank}
        ).stderr.count("guarded: ")
        for rank in ("0", "1")
    ]
    assert lines == [1, 0]
