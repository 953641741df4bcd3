"""A stand-in for `systemctl --user` that keeps its state in $FAKE_SYSTEMD (JSON) and starts nothing.

State: {"known", "enabled", "running", "last_exit", "no_bus", "calls"}.

Texts, with where they were seen (paths on github.com):
  without a session: "Failed to connect to bus: No medium found"         openrazer/openrazer/issues/2108
  reset-failed: "Failed to reset failed state of unit …: … not loaded."  cockpit-project/bots/pull/7115
  no such unit: 5 of LSB, "program is not installed"                     systemctl(1), EXIT STATUS
  show: NAME=VALUE lines, an unknown unit's UnitFileState empty          systemctl(1), show
"""

import json
import os
import sys

FILE = os.environ["FAKE_SYSTEMD"]
with open(FILE) as stream:
    state = json.load(stream)
arguments = [word for word in sys.argv[1:] if word != "--user"]
state.setdefault("calls", []).append(arguments)


def end(code, out="", err=""):
    with open(FILE, "w") as stream:
        json.dump(state, stream)
    if out:
        print(out)
    if err:
        print(err, file=sys.stderr)
    sys.exit(code)


if state.get("no_bus"):
    end(1, err="Failed to connect to bus: No medium found")
command, now = arguments[0], "--now" in arguments
unit = os.path.join(os.environ["XDG_CONFIG_HOME"], "systemd", "user", arguments[-1])
if command == "daemon-reload":
    state["known"] = os.path.isdir(os.path.dirname(unit))
    end(0)
if command == "show":
    facts = {
        "ActiveState": "active" if state["running"] else "inactive",
        "MainPID": 700 if state["running"] else 0,
        "ExecMainStatus": state.get("last_exit", 0),
        "UnitFileState": "enabled" if state["enabled"] else ("disabled" if os.path.exists(unit) else ""),
    }
    end(0, out="\n".join(f"{key}={value}" for key, value in facts.items()))
if not os.path.exists(unit):
    end(5, err=f"Failed to {command} unit: Unit file {arguments[-1]} does not exist.")
if command in ("enable", "disable"):
    state["enabled"] = command == "enable"
    if now:
        state["running"] = command == "enable"
elif command in ("start", "restart", "stop"):
    state["running"] = command != "stop"
elif command == "reset-failed":
    end(1, err=f"Failed to reset failed state of unit {arguments[-1]}: Unit {arguments[-1]} not loaded.")
end(0)
