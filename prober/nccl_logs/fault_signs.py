"""Messages that are signs of a fault or of a choice, by name. Levels do not matter: some faults are logged at INFO.

Sources of the messages: NCCL 2.14 to 2.30 (bootstrap, socket, ibvwrap, net_ib, shmutils, nvls, init), aws-ofi-nccl,
nccl-rdma-sharp-plugins, nccl-fastsocket.
"""

from __future__ import annotations

import re

from prober.nccl_logs.nccl_lines import NcclMessage

_GIDS = r"(?:.*?localGid (?P<local>\S+)(?:\s+remoteGids? ?(?P<remote>\S+))?)?(?:.*?\bhca (?P<hca>[\w.-]+))?"
_form = re.compile

SIGNS: tuple[tuple[str, str, re.Pattern[str]], ...] = (
    # Communicators that do not start.
    ("version-mismatch", "Mismatched NCCL version", _form(r"Mismatched NCCL version")),
    ("odd-family", "is neither AF_INET", _form(r"address (?P<address>\S*) ?with family (?P<family>\d+) is neither")),
    ("no-interface", "interface", _form(r"[Nn]o (?:socket |IP |usable listening )?interface found")),
    ("no-interface", "NCCL_OOB_NET_IFNAME", _form(r"no device found .*verify NCCL_OOB_NET_IFNAME")),
    (
        "connect-failed",
        "onnect",
        _form(
            r"[cC]onnect to (?P<peer>\S+?)<\d*> (?:failed|returned)(?! .*retrying)"
            r".*?(?P<error>[A-Z][a-z]+(?: [a-z]+)*)"
        ),
    ),
    ("connect-failed", "PollConnect to", _form(r"PollConnect to (?P<peer>\S+?)<\d*> failed with error (?P<error>.*)")),
    ("connect-failed", "Call to connect", _form(r"Call to connect (?:timeout|failed) : (?P<error>.*)")),
    ("connect-failed", "PollConnect poll", _form(r"socketPollConnect poll\(\) (?:returned|failed)(?P<error>)")),
    ("bootstrap-trace", "bootstrap.cc", _form(r"bootstrap\.cc:\d+ -> 2\b")),
    ("connect-failed", "exceeded", _form(r"socket(?:Start|Poll)Connect: exceeded (?P<error>retries|timeouts)")),
    ("connect-retry", "retrying", _form(r"[cC]onnect(?: to (?P<peer>\S+?)<\d*>)? returned (?P<error>[^,]+), retrying")),
    ("peer-closed", "onnection", _form(r"Connection (?:closed by remote peer|reset by peer)|Broken pipe")),
    ("peer-closed", "ncclRemoteError", _form(r"ncclRemoteError")),
    ("truncated", "Message truncated", _form(r"Message truncated : received")),
    ("truncated", "truncated : receiving", _form(r"message truncated : receiving")),
    ("truncated", "collective mismatch", _form(r"collective mismatch error")),
    ("timeout", "Watchdog", _form(r"Watchdog caught collective operation timeout")),
    ("mixed-nics", "Net devices", _form(r"Rank (?P<rank>\d+) has (?P<count>\d+) local Net devices")),
    ("mixed-nics", "mixed local Net device", _form(r"Detected mixed local Net device counts")),
    # RDMA.
    (
        "completion",
        "Got completion",
        _form(
            r"Got completion (?:from peer (?:(?P<peer>\S+?)(?:<\d*>)? )?)?with (?:error|status)[ =]?"
            r"(?P<status>\d+|[A-Za-z_][\w -]*?\(\d+\)|IBV_WC_\w+)(?:.*?vendor[ _]err[ =](?P<vendor>\d+))?" + _GIDS
        ),
    ),
    (
        "modify-qp",
        "ibv_modify_qp failed",
        _form(
            r"ibv_modify_qp failed with (?:error )?(?:\d+ )?(?P<error>[A-Z][a-z]+(?: [a-z]+)*)"
            r"(?:.*?on dev (?P<hca>[\w.-]+?)(?::\d+)?,)?(?:.*?local GID index (?P<index>-?\d+))?"
            r"(?:, local GID (?P<local>[^\s,]+))?(?:, remote GID (?P<remote>[^\s,]+))?"
        ),
    ),
    ("gdr-hint", "break GPU Direct RDMA", _form(r"ACS is enabled which would break GPU Direct RDMA")),
    ("gid-hint", "incorrect GID index", _form(r"incorrect GID index is forced")),
    ("rail-hint", "cross-rail", _form(r"NICs are not cross-rail connected")),
    ("link-local-gid", "GID", _form(r"NET/IB ?: .*GID -?\d+ \((?:80FE|FE80)0*/")),
    (
        "register-failed",
        "ibv_reg_",
        _form(r"ibv_reg_(?:\w{1,20}_)?mr\w{0,20} failed with error (?P<error>[A-Z][a-z]+(?: [a-z]+)*)"),
    ),
    (
        "register-failed",
        "Unable to register memory",
        _form(r"NET/OFI Unable to register memory \(type = 2\).*?(?P<error>RC: -?\d+)"),
    ),
    ("no-locked-memory", "Cannot allocate memory", _form(r"ibv_\w{1,40} failed with error Cannot allocate memory")),
    ("mixed-links", "incompatible", _form(r"connect incompatible devices|device is incompatible with the local")),
    (
        "link-event",
        "async",
        _form(
            r"NET/\w+ ?: (?:(?P<port>\S{1,80}:\d+) )?(?:Got )?(?:non-fatal )?async (?:fatal|"
            r"(?:error )?event.*?(?:[Pp]ort error|PORT_ERR|[Ff]atal|FATAL|catastrophic|work queue error|CQ error))"
        ),
    ),
    ("link-up", "async", _form(r"NET/\w+ ?: (?:(?P<port>\S+:\d+) )?.*async .*(?:[Pp]ort active|PORT_ACTIVE)")),
    ("cleanup", "commReclaim", _form(r"commReclaim: cleanup comm")),
    ("ended", "COMPLETE", _form(r"- (?:Destroy|Abort) COMPLETE")),
    # Networks that are missing.
    ("no-verbs", "ibverbs", _form(r"(?:Failed to|Could not|Count not) open libibverbs")),
    ("no-verbs", "libibverbs", _form(r"ncclOsDlopen\(libibverbs\S*\) failed")),
    ("no-device", "No device found", _form(r"NET/\w*IB\w* ?: No device found")),
    ("device-unopened", "NET/IB : Unable", _form(r"NET/IB : Unable to (?:open|query) (?:device|port\w*) (?P<hca>\S+)")),
    ("no-network", "network", _form(r"Error: network (?P<network>.{1,80}?) not found")),
    ("no-plugin", "Plugin", _form(r"NET/Plugin ?: .*(?:Could not find|No plugin found|Plugin load)")),
    ("plugin-named", "name set by env", _form(r"Plugin name set by env to (?!libnccl-net-none)(?P<plugin>\S+)")),
    ("plugin-unusable", "Plugin", _form(r"NET/Plugin ?: Failed to find ncclNetPlugin symbol \(>=")),
    ("plugin-unusable", "is unsupported", _form(r"External network plugin \S+ is unsupported")),
    ("cloud-path", "/", _form(r"/opt/amazon/|/opt/aws-ofi-nccl|/usr/local/gib|tcpxo?\b|a3\w{0,20}_tuner")),
    ("plugin-loaded", "Loaded net plugin", _form(r"Loaded net plugin (?P<plugin>.{1,80}?) \(")),
    ("plugin-loaded", "P2P plugin", _form(r"P2P plugin (?:v\d+ )?(?P<plugin>\w+)")),
    ("plugin-failed", "Failed to initialize", _form(r"Failed to initialize NET plugin (?!IB\b|Socket\b)\S")),
    (
        "ofi-failed",
        "NET/OFI",
        _form(
            r"NET/OFI (?:.*(?:initialization failed|No eligible providers|Initializing plugin failed|optimal provider)"
            r"|Unable to find a protocol|Couldn't open|GDR disabled on GDR-supported|Invalid type of PCI bus"
            r"|Caught exception|Creating new endpoint .* failed|Initializing a new domain .* failed)"
        ),
    ),
    ("ofi-no-gdr", "GDR disabled", _form(r"NET/OFI GDR disabled on GDR-supported instance type (?P<platform>\S+)")),
    (
        "ofi-provider",
        "Selected ",
        _form(r"NET/OFI Selected [Pp]rovider is (?P<provider>[\w;.-]+).*?\(found (?P<count>\d+) nics\)"),
    ),
    ("ofi-platform", "Running on", _form(r"NET/OFI Running on (?P<platform>[\w.-]+) platform")),
    ("ofi-version", "aws-ofi-nccl", _form(r"NET/OFI (?:Using|Initializing) aws-ofi-nccl (?P<version>[\w.-]+)")),
    # Inside the host, and in the switches.
    ("shm", "shmutils", _form(r"shmutils\.cc:\d+ .*(?:failed|Error|Could not)")),
    ("shm", "shared memory", _form(r"(?:while (?:creating|attaching to) shared memory|create shared memory file)")),
    ("shm", "/dev/shm", _form(r"(?:Failed|failed) to (?:extend|create) /dev/shm|Could not map /dev/shm")),
    ("shm", "posix_fallocate", _form(r"posix_fallocate failed")),
    ("nvls-trace", "nvls.cc", _form(r"nvls\.cc:\d+ -> [1-9]")),
    ("nvls", "Multicast memory", _form(r"Failed to bind NVLink SHARP")),
    ("nvls", "nvls.cc", _form(r"nvls\.cc:\d+ (?:Cuda failure|.*(?:failed|error))")),
    ("sharp", "SHARP", _form(r"SHARP (?:coll init error|group create|coll caps|regmr failed)")),
    ("sharp", "sharp_", _form(r"(?:sharp_coll_caps_query failed|ERROR sharp_\w|sharp_\w{1,40} failed)")),
    ("sharp", "SHARP", _form(r"ERROR .*SHARP|SHARP job .*(?:error|failed)|Cannot create SHARP job")),
    ("sharp", "CollNet", _form(r"Cannot initialize CollNet")),
    ("no-collnet", "disabling CollNet", _form(r"less than CollNet node threshold")),
    ("no-collnet-plugin", "ncclCollNetPlugin", _form(r"Failed to find ncclCollNetPlugin symbol")),
    ("p2p-broken", "P2P is disabled between", _form(r"P2P is disabled between (?P<link>NVLINK )?connected GPUs")),
    ("ring-gdr", "use ring PXN", _form(r"use ring PXN \d+ GDR 1\b")),
    ("far-nic", "for GPU", _form(r"GPU Direct RDMA Disabled for GPU \w+ / HCA")),
    ("cuda", "Cuda failure", _form(r"Cuda failure (?P<code>.*)")),
    ("fatal", " -> ", _form(r"(?<!\w)\w{1,60}\.\w{1,5}:\d{1,6} -> [1-7]\b")),
    ("fatal", "nccl", _form(r"nccl(?:SystemError|InternalError|UnhandledCudaError|InvalidUsage|RemoteError)\b")),
    ("fatal", "Test NCCL failure", _form(r"Test NCCL failure")),
)

_HARMLESS = re.compile(
    r"ras/|bind failed: Address already in use|gdrcopy|gdrdrv|libgdrapi"
    r"|[Pp]ort active|PORT_ACTIVE|path migration|communication established|WQE reached|queue drained"
    r"|SM change|LID change|GID table change|client reregistration|P_Key"
    r"|NUMA auto balancing|iommu=pt|LD_LIBRARY_PATH|Could not find real path|ibv_set_ece|Accept failed"
    r"|Failed to execute operation|Socket recv failed while polling|Error encountered progressing|Proxy Call to rank"
    r"|Could not receive type from localRank|Mismatched response size|comm \S+ has already been destroyed"
    r"|Attempt to use communicator before|fatal error \(detected in|Missing \"?.*tuner|NCCL_TUNER|msccl"
)


def is_harmless(message: NcclMessage) -> bool:
    """Return True for warnings that occur in sound runs, and for those that only follow another."""
    return bool(_HARMLESS.search(f"{message.source} {message.text}"))
