"""A tenant behind PostgREST: API_URL=... API_TOKEN=... python tenant.py LETTER; prints its job as it is now."""

import json
import os
import sys
from urllib.request import Request, urlopen


def rpc(function, **arguments):
    headers = {"Authorization": f"Bearer {os.environ['API_TOKEN']}", "Content-Type": "application/json"}
    headers["Content-Profile"] = "fairq"
    request = Request(f"{os.environ['API_URL']}/rpc/{function}", json.dumps(arguments).encode(), headers)
    with urlopen(request, timeout=30) as answer:
        return json.load(answer)


letter = int(sys.argv[1])
# without p_tenant: for the tenant that the token names
job = rpc("enqueue_job", p_queue="mail", p_task="send", p_payload={"letter": letter}, p_key=f"letter {letter}")
print(json.dumps(rpc("get_job", p_job_id=job["job_id"])[0]))
