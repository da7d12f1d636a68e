# Prints the columns named in `fields` (comma separated) of a recorded `nvidia-smi --query-gpu` table.
# `format` is nvidia-smi's own --format value: csv, then noheader and nounits if asked.
NR == 1 {
    for (i = 1; i <= NF; i++) {
        name = $i
        sub(/ \[.*$/, "", name)
        column[name] = i
    }
    count = split(fields, wanted, /, */)
    for (i = 1; i <= count; i++) {
        if (!(wanted[i] in column)) {
            printf "Field \"%s\" is not a valid field to query.\n\n", wanted[i]
            exit 2
        }
    }
    if (format ~ /noheader/) next
}
{
    line = ""
    for (i = 1; i <= count; i++) {
        value = $(column[wanted[i]])
        if (format ~ /nounits/ && value ~ /^-?[0-9.]+ (MiB|W|MHz|%|us)$/) sub(/ .*$/, "", value)
        line = line (i > 1 ? ", " : "") value
    }
    print line
}
