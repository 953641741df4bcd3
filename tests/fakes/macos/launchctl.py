"""A stand-in for macOS' launchctl that keeps its state in $FAKE_LAUNCHD (JSON) and starts nothing.

State: {"uid", "gui": someone is logged in at the screen, "disabled": [labels], "loaded": {target: {"plist",
"pid", "last_exit", "leaving": looks until it is gone}}, "bootout_looks": how many, "eio": how many bootstraps
still fail with error 5, "settle": how many do after a bootout, "gui_broken": every bootstrap in gui does,
"lazy": what is loaded isn't started, "calls": what was asked}.

Texts and codes, with where they were seen (paths on github.com):
  print, missing service: 113, "Could not find service …"     msitarzewski/brew-browser/pull/51
  print gui, no login: 125, "Domain does not support …"       duh17/oppi/issues/38
  bootstrap: "Bootstrap failed: 5: Input/output error"        pirj/noclamshell/issues/25
  … while booting out: the same                               openclaw/openclaw/issues/136453
  … in gui, never in user: the same                           Homebrew/homebrew-services/issues/528
  … for some five seconds after a bootout: the same           headroomlabs-ai/headroom/issues/1289
  … in user, of an agent that isn't "Background": 134         Homebrew/homebrew-services/pull/517
  … in gui, without a login: 125                              nix-community/home-manager/issues/4413
  … of a job that is loaded, but not started                  oceanbase/powercontext/pull/1480
  bootout, missing: 3, "Boot-out failed: 3: No such process"  nix-community/home-manager/issues/9585
  bootout, still ending: 36, "Operation now in progress"      osquery/osquery/issues/5698
  kickstart of a job that has just been started: 37           headroomlabs-ai/headroom/issues/1289
  kickstart, missing: "Could not find service …"              TencentCloud/Octop/issues/1007
  print: state, pid, last exit code; "SIGTERMed"              kxn/codex-remote-feishu/issues/914
  print-disabled: '"label" => disabled' (macOS 13 on)         usnistgov/macos_security/issues/167
  … "disabled services = {", '=> true' (before)               ninehills/blog/issues/85
"""

import json
import os
import plistlib
import sys

FILE = os.environ["FAKE_LAUNCHD"]
with open(FILE) as stream:
    state = json.load(stream)
state.setdefault("calls", []).append(sys.argv[1:])


def end(code, out="", err=""):
    with open(FILE, "w") as stream:
        json.dump(state, stream)
    if out:
        print(out)
    if err:
        print(err, file=sys.stderr)
    sys.exit(code)


def domain_exists(domain):
    return domain == f"user/{state['uid']}" or (domain == f"gui/{state['uid']}" and state["gui"])


def bootstrap(domain, plist):
    with open(plist, "rb") as stream:
        document = plistlib.load(stream)
    target = f"{domain}/{document['Label']}"
    failed = "Bootstrap failed: 5: Input/output error\nTry re-running the command as root for richer errors."
    if not domain_exists(domain):
        end(125, err="Bootstrap failed: 125: Domain does not support specified action")
    session = document.get("LimitLoadToSessionType", "Aqua")
    if session != ("Aqua" if domain.startswith("gui/") else "Background"):
        end(134, err="Bootstrap failed: 134: Service cannot load in requested session")
    if state.get("gui_broken") and domain.startswith("gui/"):
        end(5, err=failed)
    if state.get("settling", 0) > 0:
        state["settling"] -= 1
        end(5, err=failed)
    if state.get("eio", 0) > 0:
        state["eio"] -= 1
        end(5, err=failed)
    if document["Label"] in state["disabled"] or target in state["loaded"]:
        end(5, err=failed)
    state["loaded"][target] = {
        "plist": plist,
        "pid": next_pid() if document.get("RunAtLoad") and not state.get("lazy") else None,
        "last_exit": None,
        "leaving": None,
    }
    end(0)


def next_pid():
    pid = state.setdefault("next_pid", 500)
    state["next_pid"] += 1
    return pid


def bootout(target):
    job = state["loaded"].get(target)
    if job is None:
        end(3, err="Boot-out failed: 3: No such process")
    state["settling"] = state.get("settle", 0)
    if state.get("bootout_looks"):
        job["leaving"] = state["bootout_looks"]
        end(36, err="Boot-out failed: 36: Operation now in progress")
    del state["loaded"][target]
    end(0)


def show(target):
    if target.count("/") == 1:
        if domain_exists(target):
            end(0, out=f"{target} = {{\n\ttype = login\n}}")
        end(125, err="Domain does not support specified action")
    job = state["loaded"].get(target)
    if job is not None and job["leaving"] is not None:
        job["leaving"] -= 1
        if job["leaving"] < 0:
            del state["loaded"][target]
            job = None
    if job is None:
        label = target.rsplit("/", 1)[1]
        end(113, err=f'Bad request.\nCould not find service "{label}" in domain for user gui: {state["uid"]}')
    running = "SIGTERMed" if job["leaving"] is not None else "running" if job["pid"] else "not running"
    lines = [f"{target} = {{", f"\tactive count = {int(bool(job['pid']))}", f"\tpath = {job['plist']}"]
    lines += ["\ttype = LaunchAgent", f"\tstate = {running}"]
    if job["pid"]:
        lines.append(f"\tpid = {job['pid']}")
    shown = "(never exited)" if job["last_exit"] is None else job["last_exit"]
    lines += [f"\tlast exit code = {shown}", "}"]
    end(0, out="\n".join(lines))


def kickstart(target):
    job = state["loaded"].get(target)
    if job is None:
        end(113, err=f'Could not find service "{target.rsplit("/", 1)[1]}" in domain')
    if job["pid"]:
        end(37, err="Operation already in progress")
    job["pid"] = next_pid()
    end(0)


command, *rest = sys.argv[1:]
if command == "bootstrap":
    bootstrap(*rest)
elif command == "bootout":
    bootout(*rest)
elif command == "print":
    show(*rest)
elif command == "kickstart":
    kickstart(*rest)
elif command in ("enable", "disable"):
    label = rest[0].rsplit("/", 1)[1]
    state["disabled"] = sorted({*state["disabled"], label} - ({label} if command == "enable" else set()))
    end(0)
elif command == "print-disabled":
    lines = [f'\t\t"{label}" => disabled' for label in state["disabled"]]
    end(0, out="\n".join(["\tdisabled services = {", *lines, "\t}"]))
else:
    end(64, err=f"Unrecognized subcommand: {command}")
