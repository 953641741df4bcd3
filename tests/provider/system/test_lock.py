from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from provider.errors import AlreadyRunningError, ProviderError
from provider.system.lock import acquire, is_held

HOLDER = (
    "import sys; from pathlib import Path; from provider.system.lock import acquire\n"
    "lock = acquire(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
)


def test_one_process_holds_it_and_a_second_is_told_its_pid(tmp_path: Path) -> None:
    file = tmp_path / "daemon.lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert is_held(file) == (True, holder.pid)
        with pytest.raises(AlreadyRunningError, match=f"PID {holder.pid}") as caught:
            acquire(file)
        assert caught.value.pid == holder.pid
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    # The kernel dropped the lock with the process: nothing stale is left behind.
    assert is_held(file) == (False, None)
    with acquire(file):
        assert is_held(file) == (True, os.getpid())
    assert is_held(file) == (False, None)


def test_a_service_waits_for_the_owners_end(tmp_path: Path) -> None:
    file = tmp_path / "daemon.lock"
    waiter = HOLDER.replace("acquire(Path(sys.argv[1]))", "acquire(Path(sys.argv[1]), wait=True)")
    with acquire(file):
        process = subprocess.Popen(
            [sys.executable, "-c", waiter, str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        assert (
            process.stderr.readline()
            == f"waiting for the daemon that runs already (PID {os.getpid()}) to end\n"
        )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert is_held(file) == (True, process.pid)
        process.communicate("")
    assert process.returncode == 0


def test_no_file_means_nothing_runs(tmp_path: Path) -> None:
    assert is_held(tmp_path / "daemon.lock") == (False, None)


def test_looking_does_not_keep_a_start_from_the_lock(tmp_path: Path) -> None:
    file = tmp_path / "daemon.lock"
    for _ in range(50):
        with acquire(file):
            pass
        is_held(file)


def test_a_lock_that_cannot_be_looked_at_is_told_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ProviderError, match=r"can't open the lock file .*: Not a directory$"):
        is_held(tmp_path / "file" / "daemon.lock")


def test_a_full_disk_leaves_the_lock_without_a_pid(tmp_path: Path) -> None:
    code = (
        "import resource, sys; from pathlib import Path; from provider.system.lock import acquire, is_held\n"
        # No file of this process may grow, which is what a full disk is to it.
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "acquire(Path(sys.argv[1])); print(is_held(Path(sys.argv[1])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "daemon.lock")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("(True, None)\n", "")
