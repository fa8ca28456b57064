#!/bin/sh
# Writes the generated stubs into the client library, or into the folder named as the first argument.
set -eu
cd "$(dirname "$0")/.."
out=${1:-clients/python}
python=${PYTHON:-python}
"$python" -m grpc_tools.protoc -I protos --python_out="$out" --pyi_out="$out" --grpc_python_out="$out" \
    burstgate/policy/v1/policy.proto burstgate/policy/v1/admin.proto burstgate/decode/v1/decode.proto
for package in burstgate/policy burstgate/policy/v1 burstgate/decode burstgate/decode/v1; do
    test -f "$out/$package/__init__.py" || printf '"""Generated stubs."""\n' > "$out/$package/__init__.py"
done
