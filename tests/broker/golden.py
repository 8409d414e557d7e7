"""Golden frames: every request and typical replies, as messages and as the bytes that travel."""

from typing import Any

Frames = dict[str, tuple[dict[str, Any], str]]

#: What clients send.
REQUESTS: Frames = {
    "hello": (
        {"op": "hello", "version": 1, "client": "gdrpy", "id": 1},
        "84a26f70a568656c6c6fa776657273696f6e01a6636c69656e74a56764727079a2696401",
    ),
    "resume": (
        {"op": "resume", "session": 1, "leases": [[7, True, False]], "id": 2},
        "84a26f70a6726573756d65a773657373696f6e01a66c6561736573919307c3c2a2696402",
    ),
    "resume of a sleeper": (
        {"op": "resume", "session": 1, "leases": [], "asleep": [7], "id": 2},
        "85a26f70a6726573756d65a773657373696f6e01a66c656173657390a661736c6565709107a2696402",
    ),
    "allocate": (
        {
            "op": "allocate",
            "name": "a",
            "nbytes": 4096,
            "device": 0,
            "mode": 416,
            "metadata": b"\x81\xa1k\x01",
            "gpu": False,
            "id": 1,
        },
        "88a26f70a8616c6c6f63617465a46e616d65a161a66e6279746573cd1000a664657669636500a46d6f6465cd01a0a86d65746164617461c40481a16b01a3677075c2a2696401",
    ),
    "allocate anonymous host memory": (
        {
            "op": "allocate",
            "name": None,
            "nbytes": 1,
            "device": -1,
            "mode": 384,
            "metadata": b"",
            "gpu": False,
            "id": 1,
        },
        "88a26f70a8616c6c6f63617465a46e616d65c0a66e627974657301a6646576696365ffa46d6f6465cd0180a86d65746164617461c400a3677075c2a2696401",
    ),
    "create": (
        {
            "op": "create",
            "name": "a",
            "nbytes": 4096,
            "device": 1,
            "mode": 384,
            "metadata": b"",
            "gpu": False,
            "id": 1,
        },
        "88a26f70a6637265617465a46e616d65a161a66e6279746573cd1000a664657669636501a46d6f6465cd0180a86d65746164617461c400a3677075c2a2696401",
    ),
    "create for a user": (
        {
            "op": "create",
            "name": "a",
            "nbytes": 4096,
            "device": 1,
            "mode": 384,
            "metadata": b"",
            "gpu": False,
            "owner": [1000, 100],
            "id": 1,
        },
        "89a26f70a6637265617465a46e616d65a161a66e6279746573cd1000a664657669636501a46d6f6465cd0180a86d65746164617461c400a3677075c2a56f776e657292cd03e864a2696401",
    ),
    "create on a GPU by its UUID": (
        {
            "op": "create",
            "name": "a",
            "nbytes": 4096,
            "device": "GPU-67647270-7920-7369-6d75-6c6174656400",
            "mode": 384,
            "metadata": b"",
            "gpu": False,
            "id": 1,
        },
        "88a26f70a6637265617465a46e616d65a161a66e6279746573cd1000a6646576696365d9284750552d36373634373237302d373932302d373336392d366437352d366336313734363536343030a46d6f6465cd0180a86d65746164617461c400a3677075c2a2696401",
    ),
    "rounded_size": (
        {"op": "rounded_size", "nbytes": 4096, "device": -1, "id": 1},
        "84a26f70ac726f756e6465645f73697a65a66e6279746573cd1000a6646576696365ffa2696401",
    ),
    "publish of several": (
        {"op": "publish", "region": 7, "others": [8, 9], "id": 1},
        "84a26f70a77075626c697368a6726567696f6e07a66f7468657273920809a2696401",
    ),
    "publish": (
        {"op": "publish", "region": 7, "id": 1},
        "83a26f70a77075626c697368a6726567696f6e07a2696401",
    ),
    "publish beside another region": (
        {"op": "publish", "region": 7, "beside": 9, "id": 1},
        "84a26f70a77075626c697368a6726567696f6e07a662657369646509a2696401",
    ),
    "get": (
        {"op": "get", "name": "a", "readonly": False, "gpu": False, "id": 1},
        "85a26f70a3676574a2696401a46e616d65a161a8726561646f6e6c79c2a3677075c2",
    ),
    "get by identity": (
        {
            "op": "get",
            "region": 7,
            "life": "00112233445566778899aabbccddeeff",
            "readonly": True,
            "gpu": False,
            "id": 1,
        },
        "86a26f70a3676574a2696401a6726567696f6e07a46c696665d9203030313132323333343435353636373738383939616162626363646465656666a8726561646f6e6c79c3a3677075c2",
    ),
    "get_many": (
        {"op": "get_many", "names": ["a", "b"], "readonly": True, "gpu": False, "id": 1},
        "85a26f70a86765745f6d616e79a2696401a56e616d657392a161a162a8726561646f6e6c79c3a3677075c2",
    ),
    "get_many by identity": (
        {
            "op": "get_many",
            "regions": [7, 8],
            "life": "0123456789abcdef0123456789abcdef",
            "readonly": True,
            "gpu": False,
            "id": 1,
        },
        "86a26f70a86765745f6d616e79a2696401a7726567696f6e73920708a46c696665d9203031323334353637383961626364656630313233343536373839616263646566a8726561646f6e6c79c3a3677075c2",
    ),
    "release": (
        {"op": "release", "regions": [7]},
        "82a26f70a772656c65617365a7726567696f6e739107",
    ),
    "release by a sleeper": (
        {"op": "release", "regions": [7], "asleep": [7], "awake": [8]},
        "84a26f70a772656c65617365a7726567696f6e739107a661736c6565709107a56177616b659108",
    ),
    "seal": (
        {"op": "seal", "region": 7, "id": 1},
        "83a26f70a47365616ca6726567696f6e07a2696401",
    ),
    "digest": (
        {"op": "digest", "region": 7, "id": 1},
        "83a26f70a6646967657374a6726567696f6e07a2696401",
    ),
    "delete": (
        {"op": "delete", "name": "a", "id": 1},
        "83a26f70a664656c657465a46e616d65a161a2696401",
    ),
    "delete if it means this": (
        {"op": "delete", "region": 7, "name": "a", "id": 1},
        "84a26f70a664656c657465a46e616d65a161a6726567696f6e07a2696401",
    ),
    "delete if nobody holds it": (
        {"op": "delete", "name": "a", "region": 7, "unheld": True, "id": 1},
        "85a26f70a664656c657465a46e616d65a161a6726567696f6e07a6756e68656c64c3a2696401",
    ),
    "delete if nobody holds it and a copy has it": (
        {"op": "delete", "name": "a", "region": 7, "unheld": True, "copied": True, "id": 1},
        "86a26f70a664656c657465a46e616d65a161a6726567696f6e07a6756e68656c64c3a6636f70696564c3a2696401",
    ),
    "list": (
        {"op": "list", "prefix": "a", "after": "", "id": 1},
        "84a26f70a46c697374a6707265666978a161a56166746572a0a2696401",
    ),
    "stat": (
        {"op": "stat", "name": "a", "id": 1},
        "83a26f70a473746174a46e616d65a161a2696401",
    ),
    "stat by number": (
        {"op": "stat", "region": 7, "id": 1},
        "83a26f70a473746174a6726567696f6e07a2696401",
    ),
    "stat of the copy": (
        {"op": "stat", "name": "a", "copy": True, "id": 1},
        "84a26f70a473746174a46e616d65a161a4636f7079c3a2696401",
    ),
    "change": (
        {"op": "change", "region": 7, "mode": 420, "id": 1},
        "84a26f70a66368616e6765a6726567696f6e07a46d6f6465cd01a4a2696401",
    ),
    "watch": (
        {"op": "watch", "prefix": "a", "id": 1},
        "83a26f70a57761746368a6707265666978a161a2696401",
    ),
    "status": (
        {"op": "status", "id": 1},
        "82a26f70a6737461747573a2696401",
    ),
}

#: What the broker sends.
REPLIES: Frames = {
    "hello": (
        {
            "version": 1,
            "life": "00112233445566778899aabbccddeeff",
            "session": 1,
            "server": "gdrpy 0.1.0",
            "id": 1,
        },
        "85a776657273696f6e01a46c696665d9203030313132323333343435353636373738383939616162626363646465656666a773657373696f6e01a6736572766572ab676472707920302e312e30a2696401",
    ),
    "grant": (
        {
            "region": 7,
            "name": "a",
            "nbytes": 4096,
            "size": 2097152,
            "device": 0,
            "version": 1,
            "sealed": False,
            "readonly": False,
            "enforced": False,
            "metadata": b"\x81\xa1k\x01",
            "id": 1,
            "fds": 1,
        },
        "8ca6726567696f6e07a46e616d65a161a66e6279746573cd1000a473697a65ce00200000a664657669636500a776657273696f6e01a67365616c6564c2a8726561646f6e6c79c2a8656e666f72636564c2a86d65746164617461c40481a16b01a2696401a366647301",
    ),
    "grant of allocate": (
        {
            "region": 7,
            "name": "a",
            "nbytes": 4096,
            "size": 2097152,
            "device": 0,
            "version": 1,
            "sealed": False,
            "readonly": False,
            "enforced": False,
            "metadata": b"\x81\xa1k\x01",
            "created": True,
            "id": 1,
            "fds": 1,
        },
        "8da6726567696f6e07a46e616d65a161a66e6279746573cd1000a473697a65ce00200000a664657669636500a776657273696f6e01a67365616c6564c2a8726561646f6e6c79c2a8656e666f72636564c2a86d65746164617461c40481a16b01a763726561746564c3a2696401a366647301",
    ),
    "grants": (
        {
            "grants": [
                {
                    "region": 7,
                    "name": "a",
                    "nbytes": 4096,
                    "size": 2097152,
                    "device": 0,
                    "version": 1,
                    "sealed": False,
                    "readonly": False,
                    "enforced": False,
                    "metadata": b"\x81\xa1k\x01",
                },
            ],
            "more": True,
            "id": 1,
            "fds": 1,
        },
        "84a66772616e7473918aa6726567696f6e07a46e616d65a161a66e6279746573cd1000a473697a65ce00200000a664657669636500a776657273696f6e01a67365616c6564c2a8726561646f6e6c79c2a8656e666f72636564c2a86d65746164617461c40481a16b01a46d6f7265c3a2696401a366647301",
    ),
    "resume": (
        {"lost": [7], "id": 2},
        "82a46c6f73749107a2696402",
    ),
    "rounded_size": (
        {"size": 2097152, "id": 1},
        "82a473697a65ce00200000a2696401",
    ),
    "publish of several": (
        {"version": 2, "replaced": 6, "others": [1, 1], "id": 1},
        "84a776657273696f6e02a87265706c6163656406a66f7468657273920101a2696401",
    ),
    "publish": (
        {"version": 2, "replaced": 6, "id": 1},
        "83a776657273696f6e02a87265706c6163656406a2696401",
    ),
    "done": (
        {"id": 1},
        "81a2696401",
    ),
    "digest": (
        {"sha256": "ad7facb2586fc6e966c004d7d1d16b024f5805ff7cb47c7a85dabd8b48892ca7", "id": 1},
        "82a6736861323536d94061643766616362323538366663366539363663303034643764316431366230323466353830356666376362343763376138356461626438623438383932636137a2696401",
    ),
    "list": (
        {
            "regions": [
                {
                    "region": 7,
                    "name": "a",
                    "nbytes": 4096,
                    "size": 2097152,
                    "device": 0,
                    "uuid": "GPU-67647270-7920-7369-6d75-6c6174656400",
                    "mode": 384,
                    "uid": 1000,
                    "gid": 1000,
                    "version": 1,
                    "sealed": False,
                    "readers": 0,
                    "writers": 1,
                }
            ],
            "next": None,
            "id": 1,
        },
        "83a7726567696f6e7391de000da6726567696f6e07a46e616d65a161a66e6279746573cd1000a473697a65ce00200000a664657669636500a46d6f6465cd0180a3756964cd03e8a3676964cd03e8a776657273696f6e01a67365616c6564c2a77265616465727300a77772697465727301a475756964d9284750552d36373634373237302d373932302d373336392d366437352d366336313734363536343030a46e657874c0a2696401",
    ),
    "stat": (
        {
            "region": 7,
            "name": "a",
            "nbytes": 4096,
            "size": 2097152,
            "device": 0,
            "uuid": "GPU-67647270-7920-7369-6d75-6c6174656400",
            "mode": 384,
            "uid": 1000,
            "gid": 1000,
            "version": 1,
            "sealed": False,
            "readers": 0,
            "writers": 1,
            "linked": True,
            "metadata": b"\x81\xa1k\x01",
            "sha256": None,
            "holders": [{"pid": 4242, "uid": 1000, "writable": True, "gpu": False, "count": 1}],
            "id": 1,
        },
        "de0012a6726567696f6e07a46e616d65a161a66e6279746573cd1000a473697a65ce00200000a664657669636500a46d6f6465cd0180a3756964cd03e8a3676964cd03e8a776657273696f6e01a67365616c6564c2a77265616465727300a77772697465727301a475756964d9284750552d36373634373237302d373932302d373336392d366437352d366336313734363536343030a86d65746164617461c40481a16b01a7686f6c646572739185a3706964cd1092a3756964cd03e8a87772697461626c65c3a3677075c2a5636f756e7401a6736861323536c0a66c696e6b6564c3a2696401",
    ),
    "stat of what sleeps": (
        {
            "region": 7,
            "name": "a",
            "nbytes": 4096,
            "size": 2097152,
            "device": 0,
            "uuid": "GPU-67647270-7920-7369-6d75-6c6174656400",
            "mode": 384,
            "uid": 1000,
            "gid": 1000,
            "version": 2,
            "sealed": False,
            "readers": 0,
            "writers": 0,
            "linked": True,
            "metadata": b"",
            "sha256": None,
            "holders": [],
            "asleep": 1,
            "sleepers": [{"pid": 4243, "uid": 1000, "version": 1, "older": True}],
            "id": 1,
        },
        "de0014a6726567696f6e07a46e616d65a161a66e6279746573cd1000a473697a65ce00200000a664657669636500a46d6f6465cd0180a3756964cd03e8a3676964cd03e8a776657273696f6e02a67365616c6564c2a77265616465727300a77772697465727300a475756964d9284750552d36373634373237302d373932302d373336392d366437352d366336313734363536343030a86d65746164617461c400a7686f6c6465727390a6736861323536c0a66c696e6b6564c3a661736c65657001a8736c6565706572739184a3706964cd1093a3756964cd03e8a776657273696f6e01a56f6c646572c3a2696401",
    ),
    "status": (
        {
            "regions": 1,
            "names": 1,
            "sessions": 2,
            "leases": 1,
            "used": {"0": 2097152, "-1": 0},
            "limits": {"0": 17179869184, "-1": None},
            "uuids": {"0": "GPU-67647270-7920-7369-6d75-6c6174656400"},
            "users": {"0/1000": 2097152},
            "requests": {"hello": 2, "allocate": 1},
            "id": 1,
        },
        "8aa7726567696f6e7301a56e616d657301a873657373696f6e7302a66c656173657301a47573656482a130ce00200000a22d3100a66c696d69747382a130cf0000000400000000a22d31c0a5757569647381a130d9284750552d36373634373237302d373932302d373336392d366437352d366336313734363536343030a5757365727381a6302f31303030ce00200000a8726571756573747382a568656c6c6f02a8616c6c6f6361746501a2696401",
    ),
    "event": (
        {"event": "published", "name": "a", "region": 7, "version": 2},
        "84a56576656e74a97075626c6973686564a46e616d65a161a6726567696f6e07a776657273696f6e02",
    ),
    "event without a region": (
        {"event": "freed"},
        "81a56576656e74a56672656564",
    ),
    "refusal": (
        {"error": "NotFound", "message": "get: there is no region of the name 'a'", "id": 1},
        "83a2696401a56572726f72a84e6f74466f756e64a76d657373616765d9276765743a207468657265206973206e6f20726567696f6e206f6620746865206e616d6520276127",
    ),
}
