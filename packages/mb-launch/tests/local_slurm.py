"""A Slurm of two nodes on this machine: slurmctld, two slurmd and munged with their own ports, keys and folders."""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "munged", "srun", "sbatch", "scontrol", "squeue", "scancel")
NODES = ("alpha", "beta")

_CONFIGURATION = """\
ClusterName=local
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,requeue_setup_env_fail
PriorityType=priority/basic
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
KillWait=5
InactiveLimit=0
MinJobAge=600
{nodes}
PartitionName=batch Nodes=ALL Default=YES State=UP MaxTime=INFINITE PriorityTier=1 GraceTime=30
PartitionName=urgent Nodes=ALL State=UP MaxTime=INFINITE PriorityTier=2 PreemptMode=OFF
"""


def missing_programs():
    """Return why this machine cannot run Slurm, or None."""
    if os.geteuid() != 0:
        return "slurmd runs as root"
    missing = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    return f"not installed: {', '.join(missing)} (Debian: slurm-wlm, munge)" if missing else None


class LocalSlurm:
    """The cluster; its commands work with the variables `environment`."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SLURM_")},
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "PATH": _path(),
        }
        self._processes = []

    def start(self):
        """Start the daemons, and wait until both nodes are idle.

        Raises:
            RuntimeError: They did not start.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self.folder.chmod(0o755)
        options = [f"--{name}-file={self.folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
        self._spawn("munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", *options)
        self._await(lambda: (self.folder / "munge.socket").exists(), "munged")
        self._configure()
        self._spawn("slurmctld", "-D")
        for node in NODES:
            self._spawn("slurmd", "-D", "-N", node)
        self._await(
            lambda: self.run("sinfo", "-h", "-N", "-o", "%T", "-p", "batch").split() == ["idle"] * 2, "nodes"
        )
        return self

    def stop(self):
        """Cancel all jobs and end the daemons."""
        for process in reversed(self._processes):
            if process.args[0] == "slurmctld":
                subprocess.run(
                    ["scancel", "--user=root"], env=self.environment, check=False, capture_output=True
                )
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def run(self, *command):
        """Run a command and return what it prints."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr if done.returncode else done.stdout

    def wait(self, job, *states, seconds=60):
        """Wait until a job has one of the states, and return it."""
        found = []

        def reached():
            found[:] = [self.state(job)]
            return found[0] in states

        self._await(
            reached, f"job {job} in {states}: {self.run('scontrol', 'show', 'job', str(job))}", seconds
        )
        return found[0]

    def state(self, job):
        """Return the state of a job."""
        for word in self.run("scontrol", "show", "job", "-o", str(job)).split():
            if word.startswith("JobState="):
                return word.partition("=")[2]
        return "UNKNOWN"

    def _configure(self):
        ports = _free_ports(3)
        cores = os.cpu_count() or 2
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={port} "
            f"CPUs={cores} RealMemory=1000 State=UNKNOWN"
            for name, port in zip(NODES, ports[1:], strict=True)
        )
        text = _CONFIGURATION.format(host=socket.gethostname(), ports=ports, folder=self.folder, nodes=nodes)
        (self.folder / "slurm.conf").write_text(text)

    def _spawn(self, *command):
        log = (self.folder / f"{command[0]}.out").open("a")
        self._processes.append(
            subprocess.Popen(command, env=self.environment, stdout=log, stderr=subprocess.STDOUT)
        )

    def _await(self, condition, what, seconds=30):
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until:
                logs = "\n".join(
                    file.read_text(errors="replace")[-2000:] for file in self.folder.glob("*.log")
                )
                raise RuntimeError(f"waited {seconds} s for {what}\n{logs}")
            time.sleep(0.1)


def _path():
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


def _free_ports(number):
    sockets = [socket.socket() for _ in range(number)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
