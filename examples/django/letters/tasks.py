"""The application: what the jobs do, by their task; in no transaction, looking now and then whether to stop."""

import time


def send(payload, stopping):
    for _ in range(round(20 * payload.get("seconds", 0))):
        if stopping():
            raise InterruptedError
        time.sleep(0.05)
    return {"letter": payload["letter"]}


TASKS = {"send": send}
