"""Every size and count that the contract and the protocol fix, in one place.

Sizes are UTF-8 bytes; a value exactly at a cap passes (docs/contract.md, docs/protocol.md).
"""

from __future__ import annotations

from typing import Final

# What every reader of JSON keeps as it is (RFC 7493, 2.2).
SAFE_INTEGER: Final = 2**53 - 1

KIB: Final = 1024
MIB: Final = 1024 * KIB

# Requests (contract.md, "Requests" and the error table)
REQUEST_BODY_BYTES: Final = 8 * MIB
REQUEST_DEPTH: Final = 128
MESSAGES_DEFAULT: Final = 256
HISTORY_TOOL_CALLS: Final = 128
TOOL_RESULT_BYTES: Final = 256 * KIB
TOOL_RESULTS_BYTES: Final = 1 * MIB
HISTORY_ARGUMENTS_BYTES: Final = 1 * MIB
HISTORY_ARGUMENTS_TOTAL_BYTES: Final = 2 * MIB
STOP_STRINGS: Final = 4
TOP_LOGPROBS: Final = 20
MIN_ANSWER_TOKENS: Final = 4096

# Emitted calls (contract.md, "What becomes a call" and "Streaming")
EMITTED_ARGUMENTS_BYTES: Final = 1 * MIB
EMITTED_ARGUMENTS_TOTAL_BYTES: Final = 2 * MIB
EMITTED_ARGUMENTS_DEPTH: Final = 32
ARGUMENTS_PIECE_BYTES: Final = 2 * KIB
FUNCTION_NAME_CHARS: Final = 64
PARAMETER_NAME_CHARS: Final = 128

# Frames (protocol.md)
JOB_ID_PATTERN: Final = "[A-Za-z0-9_-]{1,128}"
FRAME_FROM_GATEWAY_BYTES: Final = 16 * MIB
FRAME_FROM_PROVIDER_BYTES: Final = 1 * MIB
DELTA_TEXT_BYTES: Final = 64 * KIB
# Control frames that wait for a peer which reads slower than it makes us answer; more end the link.
WAITING_CONTROL_FRAMES: Final = 4096
# Attempts whose ending a gateway has not acknowledged; it is offering faster than it listens.
OPEN_ATTEMPTS: Final = 4096
OUTBOX_JOB_BYTES: Final = 8 * MIB
OUTBOX_TOTAL_BYTES: Final = 64 * MIB
UNREAD_JOB_BYTES: Final = 1 * MIB

# Times (protocol.md), in milliseconds. A half-open link is noticed when it was silent for LINK_DEAD_AFTER_MS
# and then looked at, which both ends do each LINK_LOOK_MS: with the time that a busy machine needs to act on
# it that stays within HALF_OPEN_NOTICED_MS.
HEARTBEAT_INTERVAL_MS: Final = 10_000
LINK_DEAD_AFTER_MS: Final = 25_000
LINK_LOOK_MS: Final = 1_000
HALF_OPEN_NOTICED_MS: Final = 30_000
SEND_TIMEOUT_MS: Final = 5_000
REDISPATCH_WAIT_MS: Final = 5_000
RESUME_WINDOW_MS: Final = 60_000
JOB_DEADLINE_MS: Final = 600_000
FIRST_CONTENT_BASE_MS: Final = 30_000
FIRST_CONTENT_PER_TOKEN_MS: Final = 20
SSE_COMMENT_INTERVAL_MS: Final = 10_000
DRAIN_DEFAULT_MS: Final = 30_000
BACKOFF_MIN_MS: Final = 1_000
BACKOFF_MAX_MS: Final = 60_000
BACKOFF_RESET_AFTER_MS: Final = 30_000
DISPATCH_ATTEMPTS: Final = 3
