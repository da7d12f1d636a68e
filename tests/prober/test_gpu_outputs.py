"""nvidia-smi of many drivers, on outputs that the recorded machines do not show."""

from __future__ import annotations

import re

import pytest

from holmes_core.records.inventory import Host
from holmes_core.units import MIB
from prober.asking.recording import HostNotes, Recorded
from prober.facts.gpu import gpu_report
from prober.findings.tool_findings import tool_findings
from prober.read_host import read_host

GIB = 1024**3


def read(*outputs: tuple[str, str]) -> Host:
    return read_host("host", [Recorded(command, text, 0) for command, text in outputs], HostNotes())


LIST = ("nvidia-smi -L", "GPU 0: NVIDIA L40S (UUID: GPU-aa)\nGPU 1: NVIDIA L40S (UUID: GPU-bb)\n")
APPS = "nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory,process_name --format=csv"


def processes(host: Host) -> list[tuple[int | None, int, str | None, int | None]]:
    return [(found.gpu, found.pid, found.name, found.memory_bytes) for found in host.gpu_processes or ()]


def test_processes_are_those_of_compute_apps_with_the_index_of_their_gpu() -> None:
    text = (
        "gpu_uuid, pid, used_gpu_memory [MiB], process_name\nGPU-bb, 4242, 1024 MiB, python train.py, one\n"
        "GPU-cc, 7, [N/A], [Insufficient Permissions]\n"
    )
    assert processes(read(LIST, (APPS, text))) == [(1, 4242, "python train.py, one", GIB), (None, 7, None, None)]


def test_processes_of_a_query_without_header_are_read_by_the_fields_asked_for() -> None:
    query = "nvidia-smi --query-compute-apps=pid,used_memory,gpu_uuid --format=csv,noheader,nounits"
    assert processes(read(LIST, (query, "4242, 1024, GPU-aa\n"))) == [(0, 4242, None, GIB)]


def test_no_process_is_known_from_an_empty_answer_and_nothing_where_nobody_asked() -> None:
    assert read(LIST, (APPS, "gpu_uuid, pid, used_gpu_memory [MiB], process_name\n")).gpu_processes == ()
    assert read(LIST).gpu_processes is None


@pytest.mark.parametrize(
    "row",
    [
        "|    1   N/A  N/A           4242      C   python3                                1024MiB |",
        "|    1    7    0            4242      C   python3                                1024MiB |",
        "|    1      4242      C   python3                                     1024MiB |",
        "|    1   N/A  N/A      4242    C+G   python3                           1024MiB |",
    ],
)
def test_processes_of_the_plain_table_are_the_computing_ones(row: str) -> None:
    xorg = "|    0   N/A  N/A      1290      G   /usr/lib/xorg/Xorg                  4MiB |"
    table = f"| Processes:   |\n|  GPU   PID   Type   Process name    Usage |\n|=====|\n{xorg}\n{row}\n+---+\n"
    assert processes(read(LIST, ("nvidia-smi", table))) == [(1, 4242, "python3", GIB)]


def test_no_process_in_the_plain_table_is_none_running() -> None:
    table = "| Processes:  |\n|=====|\n|  No running processes found   |\n+----+\n"
    assert read(LIST, ("nvidia-smi", table)).gpu_processes == ()


REPORT = """
==============NVSMI LOG==============

Driver Version                            : 570.124.06
CUDA Version                              : 12.8

Attached GPUs                             : 2
GPU 00000000:19:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Persistence Mode                      : Enabled
    MIG Mode
        Current                           : Disabled
        Pending                           : Disabled
    GPU UUID                              : GPU-aa
    PCI
        Bus Id                            : 00000000:19:00.0
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : 5
            Link Width
                Max                       : 16x
                Current                   : 8x
    Clocks Event Reasons
        Idle                              : Active
        HW Slowdown                       : Active
            HW Thermal Slowdown           : Not Active
    FB Memory Usage
        Total                             : 81559 MiB
    Compute Mode                          : Default
    ECC Errors
        Volatile
            SRAM Correctable              : 0
            DRAM Uncorrectable            : 2
    Fabric
        State                             : In Progress
        Status                            : N/A
    Processes
        Process ID                        : 4242
            Type                          : C
            Name                          : python
            Used GPU Memory               : 1024 MiB
GPU 00000000:3B:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    MIG Mode
        Current                           : Enabled
    Fabric
        State                             : Completed
        Status                            : Success
    Processes                             : None
"""


def test_report_of_all_gpus_is_read_by_its_sections() -> None:
    first, second = read(("nvidia-smi -q", REPORT)).gpus
    assert (first.index, first.name, first.uuid, first.pci_address) == (
        0,
        "NVIDIA H100 80GB HBM3",
        "GPU-aa",
        "0000:19:00.0",
    )
    assert (first.memory_bytes, first.driver_version, first.mig) == (81559 * 1024**2, "570.124.06", False)
    assert (first.pci_gen, first.pci_gen_max, first.pci_width, first.pci_width_max) == (5, 5, 8, 16)
    assert (first.throttle_reasons, first.ecc_uncorrected) == (("hw_slowdown",), 2)
    assert (first.fabric_state, first.fabric_status) == ("In Progress", None)
    assert (second.index, second.mig, second.fabric_state, second.fabric_status) == (1, True, "Completed", "Success")
    assert processes(read(("nvidia-smi -q", REPORT))) == [(0, 4242, "python", GIB)]


def test_fabric_is_read_from_the_lines_that_the_probe_asks_for() -> None:
    kept = [
        line for line in REPORT.splitlines() if line.startswith(("GPU ", "    Product", "    Fabric", "        St"))
    ]
    host = read(LIST, ("nvidia-smi -q | grep -A5 -e '^GPU ' -e '^    Fabric$'", "\n--\n".join(kept) + "\n"))
    assert [(gpu.fabric_state, gpu.fabric_status) for gpu in host.gpus] == [
        ("In Progress", None),
        ("Completed", "Success"),
    ]
    assert host.gpu_processes is None


def test_report_of_one_gpu_has_the_index_it_was_asked_for() -> None:
    one = REPORT[: REPORT.index("GPU 00000000:3B")]
    assert [gpu.index for gpu in read(("nvidia-smi -q -i 3", one)).gpus] == [3]


TABLE_550 = """\
| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:19:00.0 Off |                    2 |
| N/A   34C    P0             73W /  700W |     529MiB /  81559MiB |      0%   E. Process |
|                                         |                        |              Enabled |
+-----------------------------------------+------------------------+----------------------+
"""
TABLE_580_GB10 = """\
| NVIDIA-SMI 580.95.05              Driver Version: 580.95.05      CUDA Version: 13.0     |
+-----------------------------------------+------------------------+----------------------+
|   0  NVIDIA GB10                    On  |   0000000F:01:00.0 Off |                  N/A |
| N/A   41C    P8              4W /  N/A  | Not Supported          |      0%      Default |
|                                         |                        |                  N/A |
"""


def test_plain_table_of_driver_550_has_the_mig_mode_in_its_third_row() -> None:
    (gpu,) = read(("nvidia-smi", TABLE_550)).gpus
    assert (gpu.name, gpu.pci_address, gpu.memory_bytes) == ("NVIDIA H100 80GB HBM3", "0000:19:00.0", 81559 * 1024**2)
    assert (gpu.mig, gpu.compute_mode, gpu.ecc_uncorrected, gpu.driver_version) == (
        True,
        "Exclusive_Process",
        2,
        "550.54.15",
    )


def test_plain_table_of_driver_580_on_a_machine_with_shared_memory() -> None:
    (gpu,) = read(("nvidia-smi", TABLE_580_GB10)).gpus
    assert (gpu.name, gpu.pci_address, gpu.memory_bytes, gpu.mig) == ("NVIDIA GB10", "000f:01:00.0", None, None)
    assert (gpu.compute_mode, gpu.ecc_uncorrected) == ("Default", None)


def test_query_with_values_the_card_does_not_have() -> None:
    query = "nvidia-smi --query-gpu=index,name,memory.total,mig.mode.current,ecc.errors.uncorrected.volatile.total"
    text = (
        "index, name, memory.total [MiB], mig.mode.current, ecc.errors.uncorrected.volatile.total\n"
        "0, Tesla K80, [Not Supported], [Not Supported], [GPU is lost]\n"
        "1, NVIDIA A100-SXM4-80GB, 81920 MiB, Enabled, 3\n"
    )
    lost, whole = read((f"{query} --format=csv", text)).gpus
    assert (lost.name, lost.memory_bytes, lost.mig, lost.ecc_uncorrected) == ("Tesla K80", None, False, None)
    assert (whole.memory_bytes, whole.mig, whole.ecc_uncorrected) == (80 * GIB, True, 3)


def test_query_for_names_alone_is_a_row_a_gpu() -> None:
    query = "nvidia-smi --query-gpu=name --format=csv,noheader"
    assert [gpu.name for gpu in read((query, "NVIDIA H100 PCIe\nNVIDIA H100 PCIe\n")).gpus] == ["NVIDIA H100 PCIe"] * 2
    assert read((query, "No devices were found\n")).gpus == ()


def test_last_cell_of_an_answer_without_its_last_newline_may_be_cut() -> None:
    query = "nvidia-smi --query-gpu=index,name --format=csv,noheader"
    assert [gpu.name for gpu in read((query, "0, NVIDIA A10\n1, NVIDIA A10")).gpus] == ["NVIDIA A10", "NVIDIA A10"]
    assert [gpu.name for gpu in read((query, "0, NVIDIA A10\n1, NVIDIA A1")).gpus] == ["NVIDIA A10", None]


def test_topology_of_old_drivers_names_the_nics_in_its_columns() -> None:
    text = (
        "\tGPU0\tGPU1\tmlx5_0\tmlx5_1\tCPU Affinity\nGPU0\t X \tNV2\tPIX\tSYS\t0-19,40-59\n"
        "GPU1\tNV2\t X \tSYS\tPIX\t20-39,60-79\nmlx5_0\tPIX\tSYS\t X \tSYS\t\nmlx5_1\tSYS\tPIX\tSYS\t X \t\n"
    )
    found = [(gpu.nearest_nics, gpu.nearest_path, gpu.cpus) for gpu in read(("nvidia-smi topo -m", text)).gpus]
    assert found == [(("mlx5_0",), "PIX", "0-19,40-59"), (("mlx5_1",), "PIX", "20-39,60-79")]


def test_topology_of_new_drivers_names_the_nics_in_a_legend() -> None:
    text = (
        "\t\x1b[4mGPU0\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
        "GPU0\t X \tPXB\tNODE\t0-47,96-143\t1\t\tN/A\nNIC0\tPXB\t X \tNODE\t\t\t\t\n\nNIC Legend:\n\n"
        "  NIC0: mlx5_0\n  NIC1: mlx5_bond_0\n"
    )
    (gpu,) = read(("nvidia-smi topo -m", text)).gpus
    assert (gpu.nearest_nics, gpu.nearest_path, gpu.numa_node) == (("mlx5_0",), "PXB", 1)


def test_nvlinks_of_an_h100_with_one_link_out() -> None:
    links = "".join(f"\t Link {number}: 26.562 GB/s\n" for number in range(17))
    text = f"GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aa)\n{links}\t Link 17: <inactive>\n"
    (gpu,) = read(("nvidia-smi nvlink --status", text)).gpus
    assert (gpu.nvlinks_up, gpu.nvlinks_total) == (17, 18)


TWO_GPUS = "0, NVIDIA H100, 81559 MiB\n1, NVIDIA H100, 81559 MiB\n"


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ('nvidia-smi --query-gpu="index,name,memory.total" --format=csv,noheader', TWO_GPUS),
        ("nvidia-smi --query-gpu='index, name, memory.total' --format=csv,noheader", TWO_GPUS),
        ("ssh n1 'nvidia-smi --query-gpu=index,name,memory.total --format=csv,noheader'", TWO_GPUS),
        (
            'nvidia-smi --query-gpu="index,name,memory.total" --format=csv',
            f"index, name, memory.total [MiB]\n{TWO_GPUS}",
        ),
        (
            "nvidia-smi --query-gpu=index,name,memory.total --format=csv | column -t -s,",
            "index   name          memory.total [MiB]\n0       NVIDIA H100   81559 MiB\n"
            "1       NVIDIA H100   81559 MiB\n",
        ),
    ],
)
def test_gpus_of_a_quoted_or_padded_query_are_found(command: str, text: str) -> None:
    gpus = read_host("host", [Recorded(command, text, 0)], HostNotes()).gpus
    assert [(gpu.index, gpu.name, gpu.memory_bytes) for gpu in gpus] == [
        (0, "NVIDIA H100", 81559 * MIB),
        (1, "NVIDIA H100", 81559 * MIB),
    ]


def test_a_query_whose_fields_the_command_does_not_name_takes_them_from_its_header() -> None:
    output = Recorded("nvidia-smi --query-gpu=$FIELDS --format=csv", "\nindex, name\n0, NVIDIA H100\n", 0)
    assert [gpu.name for gpu in read_host("host", [output], HostNotes()).gpus] == ["NVIDIA H100"]


def test_rows_without_the_names_of_their_fields_are_told() -> None:
    output = Recorded("nvidia-smi --query-gpu=$FIELDS --format=csv,noheader", TWO_GPUS, 0)
    assert read_host("host", [output], HostNotes()).gpus == ()
    assert [finding.rule for finding in tool_findings("host", [output])] == ["PROBE-TRUNCATED"]


def test_outputs_of_two_machines_mixed_in_one_folder_conflict() -> None:
    query = Recorded("nvidia-smi --query-gpu=index,uuid --format=csv", "index, uuid\n0, GPU-1\n", 0)
    listed = Recorded("nvidia-smi -L", "GPU 0: NVIDIA H100 (UUID: GPU-2)\n", 0)
    host = read_host("host", [listed, query], HostNotes())
    (conflict,) = host.conflicts
    assert (conflict.subject, conflict.fact, conflict.value_a, conflict.value_b) == ("GPU0", "uuid", "GPU-1", "GPU-2")
    assert [(gpu.uuid, gpu.name) for gpu in host.gpus] == [("GPU-1", "NVIDIA H100")]


def test_a_query_of_one_gpu_is_of_the_one_that_the_command_names() -> None:
    outputs = [
        Recorded(f"nvidia-smi -i {index} --query-gpu=name,uuid --format=csv,noheader", f"NVIDIA H100, GPU-{index}\n", 0)
        for index in (3, 1)
    ]
    gpus = read_host("host", outputs, HostNotes()).gpus
    assert [(gpu.index, gpu.uuid) for gpu in gpus] == [(1, "GPU-1"), (3, "GPU-3")]


def test_a_gaudi_in_lspci_is_an_accelerator_of_another_maker() -> None:
    line = "0000:19:00.0 Processing accelerators [1200]: Habana Labs Ltd. Device [1da3:1020] (rev 01)\n"
    assert read_host("host", [Recorded("lspci -Dnn", line, 0)], HostNotes()).other_accelerators == ("Intel Gaudi",)


def test_the_command_of_a_live_probe_keeps_the_whole_health_of_the_fabric() -> None:
    health = ("Summary", "Bandwidth", "Route Recovery in progress", "Route Unhealthy", "Access Timeout Recovery")
    lines = ["State : Completed", "Status : Success", "CliqueId : 1", "ClusterUUID : b2da", "Health", *health, "Last"]
    words = re.search(r"grep -A(\d+)", gpu_report.REPORT.shell)
    assert words is not None
    assert int(words[1]) >= len(lines)
