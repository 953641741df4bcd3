"""What the stand-ins for pmset, sysctl, ioreg and notifyutil print.

$FAKE_MAC is a file with a JSON object, "command line" → text.
A command line that isn't there ends with 1, as the real ones do on an unknown name.
"""

import json
import os
import sys

with open(os.environ["FAKE_MAC"]) as stream:
    answers = json.load(stream)
asked = " ".join(sys.argv[1:])
if asked not in answers:
    print(f"{asked}: not known here", file=sys.stderr)
    sys.exit(1)
print(answers[asked])
