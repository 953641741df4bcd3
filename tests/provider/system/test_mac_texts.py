"""What macOS' commands print, as people have pasted it in public (paths on github.com unless told)."""

from __future__ import annotations

import pytest

from provider.system.mac_texts import (
    battery_percent,
    gpu_cores,
    idle_seconds,
    low_power,
    memory_pressure,
    on_battery,
    thermal,
)


@pytest.mark.parametrize(
    ("text", "discharging", "percent"),
    [
        # spaceship-prompt/spaceship-prompt/pull/640
        (
            "Now drawing from 'Battery Power'\n"
            " -InternalBattery-0 (id=5374051)\t95%; discharging; 3:06 remaining present: true",
            True,
            95,
        ),
        # imwally/battstat/issues/2, two of its five
        (
            "Now drawing from 'Battery Power'\n"
            " -InternalBattery-0 \t90%; discharging; (no estimate) present: true",
            True,
            90,
        ),
        (
            "Now drawing from 'AC Power'\n -InternalBattery-0 \t88%; AC attached; not charging present: true",
            False,
            88,
        ),
        # guarinogabriel/Mac-CLI/pull/69
        (
            "Now drawing from 'AC Power'\n"
            " -InternalBattery-0     84%; charging; 1:05 remaining present: true",
            False,
            84,
        ),
        # liquidprompt/liquidprompt/pull/317: an iMac has no battery
        ("Now drawing from 'AC Power'", False, None),
        # IOPSKeys.h, kIOPMUPSPowerKey: "UPS Power"; a UPS is listed by its own name
        ("Now drawing from 'UPS Power'\n -CP1500 (id=123)\t40%; discharging; (no estimate)", True, None),
        (
            "Now drawing from 'Battery Power'\n -CP1500 (id=123)\t40%; discharging; (no estimate)\n"
            " -InternalBattery-0 (id=4653155)\t20%; discharging; 1:02 remaining present: true",
            True,
            20,
        ),
        ("", None, None),
        ("something else entirely", None, None),
    ],
)
def test_the_power_source(text: str, discharging: bool | None, percent: int | None) -> None:
    assert on_battery(text) is discharging
    assert battery_percent(text) == percent


# AppHouseKitchen/AlDente-Battery_Care_and_Monitoring/issues/603
SETTINGS = """System-wide power settings:
 SleepDisabled\t\t1
Currently in use:
 standby              1
 Sleep On Power Button 1
 hibernatefile        /var/vm/sleepimage
 powernap             1
 networkoversleep     0
 disksleep            10
 sleep                1 (sleep prevented by bluetoothd, com.bombich.ccchelper, powerd, sharingd)
 hibernatemode        3
 ttyskeepawake        1
 displaysleep         10 (display sleep prevented by com.apphousekitchen.aldente-pro)
 tcpkeepalive         1
 lowpowermode         {}
 womp                 1
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SETTINGS.format(0), False),
        (SETTINGS.format(1), True),
        # jacklandrin/OnlySwitch/issues/168, alfredapp/low-power-mode-workflow/issues/4: newer Macs say
        # `powermode`: 0 automatic, 1 low power, 2 high power
        (SETTINGS.replace("lowpowermode  ", "powermode     ").format(0), False),
        (SETTINGS.replace("lowpowermode  ", "powermode     ").format(1), True),
        (SETTINGS.replace("lowpowermode  ", "powermode     ").format(2), False),
        # real-world-systems.com/docs/pmset.1.html: an Intel Mac with macOS 12 has no such mode
        ("System-wide power settings:\nCurrently in use:\n lidwake              1\n gpuswitch  2", None),
        ("", None),
    ],
)
def test_low_power_mode(text: str, expected: bool | None) -> None:
    assert low_power(text) is expected


# `notifyutil -g KEY` prints "KEY value" (notifyutil(1)); the values are those of OSThermalNotification.h and
# of powermetrics: 0 nominal, 1 moderate, 2 heavy, 3 trapping, 4 sleeping
# (stanislas.blog/2025/12/macos-thermal-throttling-app).
@pytest.mark.parametrize(
    ("level", "word"),
    [
        ("0", "nominal"),
        ("1", "fair"),
        ("2", "serious"),
        ("3", "critical"),
        ("4", "critical"),
        ("9", "critical"),
    ],
)
def test_heat(level: str, word: str) -> None:
    assert thermal(f"com.apple.system.thermalpressurelevel {level}\n") == word


@pytest.mark.parametrize("text", ["", "com.apple.system.thermalpressurelevel: Failed with code 1"])
def test_heat_that_is_not_told(text: str) -> None:
    assert thermal(text) is None


@pytest.mark.parametrize(
    ("text", "word"),
    # giampaolo/psutil/issues/2725, exelban/stats/issues/254
    [("1\n", "nominal"), ("2\n", "serious"), ("4\n", "critical"), ("", None), ("0\n", None)],
)
def test_memory_pressure(text: str, word: str | None) -> None:
    assert memory_pressure(text) == word


def test_idle_time() -> None:
    # dssw.co.uk/blog/2015-01-21-inactivity-and-idle-time; the entry's head as ioreg(8) prints one
    text = (
        "  +-o IOHIDSystem  <class IOHIDSystem, id 0x1000002cf, registered, matched, active, busy 0 (0 ms)>\n"
        '    | {\n    |   "HIDIdleTime" = 21858429000\n    |   "HIDPointerAcceleration" = 49152\n    | }\n'
    )
    assert idle_seconds(text) == pytest.approx(21.858429)
    assert idle_seconds('    |   "IOClass" = "IOHIDSystem"\n') is None


def test_gpu_cores() -> None:
    # The entry as in exelban/stats/issues/1094; its "gpu-core-count": pytorch/pytorch/pull/160414
    text = (
        "+-o AGXAcceleratorG16G  <class AGXAcceleratorG16G, id 0x10000039c, registered, matched, active>\n"
        '    {\n      "model" = "Apple M4"\n      "gpu-core-count" = 10\n    }\n'
    )
    assert gpu_cores(text) == 10
    assert gpu_cores("") is None
