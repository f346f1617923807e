#!/bin/sh
# Counts words with wc. It reads plain sentences only: messages with quotes want a JSON reader such as jq.
message=$(sed -n 's/.*"message": *"\([^"\\]*\)".*/\1/p')

if [ -z "$message" ]; then
  echo '{"type": "error", "message": "I read plain sentences only", "code": "not_understood"}'
  exit 0
fi
echo '{"type": "tool_call", "id": "1", "name": "wc", "args": {"option": "-w"}}'
count=$(echo "$message" | wc -w | tr -d ' ')
echo "{\"type\": \"tool_result\", \"id\": \"1\", \"output\": $count}"
echo "{\"type\": \"answer\", \"text\": \"That is $count words.\"}"
