#!/usr/bin/env python3
"""Counts the cases of one ctest run.

    tests/count.py GTEST_FOLDER JUNIT_FILE    prints: PASSED FAILED SKIPPED

GTEST_FOLDER holds the files that GTEST_OUTPUT=json:FOLDER/ made. A ctest entry whose GoogleTest report is there counts
its cases; any other entry (a script, or a binary that died before it could report) counts as one. An entry that ctest
calls failed though its report shows no failed case (a crash at exit, a sanitizer report) adds one failed case.
"""
import json
import pathlib
import sys
import xml.etree.ElementTree as ET


def main() -> int:
    reports = {}
    for path in pathlib.Path(sys.argv[1]).glob("*.json"):
        try:
            reports[path.stem] = json.loads(path.read_text())
        except ValueError:
            pass  # cut off by a crash: the ctest entry below counts as one failure
    passed = failed = skipped = 0
    entries = list(ET.parse(sys.argv[2]).getroot().iter("testcase"))
    for entry in entries:
        name, status = entry.get("name"), entry.get("status")
        entry_failed = status == "fail"
        report = reports.get(name)
        if report is None or not report.get("tests"):
            if entry_failed:
                failed += 1
            elif status == "run" and report is None:
                passed += 1
            elif status == "run":
                failed += 1  # a GoogleTest binary without a single case tests nothing
                print(f"count: {name} ran no case", file=sys.stderr)
            else:
                # A test may ask to be skipped; one that could not be started is a failure.
                reason = entry.find("skipped")
                message = reason.get("message", "") if reason is not None else ""
                asked = status == "disabled" or message.startswith("SKIP_")
                skipped += asked
                failed += not asked
                print(f"count: {'skipped' if asked else 'not run'}: {name} {message}", file=sys.stderr)
            continue
        case_failed = 0
        for suite in report["testsuites"]:
            for case in suite["testsuite"]:
                if case.get("status") == "NOTRUN" or case.get("result") == "SKIPPED":
                    skipped += 1
                    print(f"count: skipped: {suite['name']}.{case['name']}", file=sys.stderr)
                elif case.get("failures"):
                    case_failed += 1
                    print(f"count: failed: {suite['name']}.{case['name']}", file=sys.stderr)
                else:
                    passed += 1
        if entry_failed and not case_failed:
            case_failed = 1
            print(f"count: {name} failed outside its cases", file=sys.stderr)
        failed += case_failed
    if not entries:
        print("count: ctest ran nothing", file=sys.stderr)
        failed += 1
    print(passed, failed, skipped)
    return 0


if __name__ == "__main__":
    sys.exit(main())
