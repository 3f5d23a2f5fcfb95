# Writes OUT, a C++ file that links every file below DIST into the binary.
#   cmake -DDIST=<folder> -DOUT=<file.cc> -P embed_web.cmake
# Runs on every build and touches OUT only when something changed; the hash in
# each comment makes the compiler notice a file whose name stayed the same.
file(GLOB_RECURSE files RELATIVE "${DIST}" "${DIST}/*")
list(SORT files)
set(data "")
set(table "")
set(index 0)
foreach(file ${files})
  file(SHA256 "${DIST}/${file}" hash)
  string(APPEND data
    "// ${hash}\n"
    "asm(\".section .rodata\\n\"\n"
    "    \"web_file_${index}:\\n\"\n"
    "    \".incbin \\\"${DIST}/${file}\\\"\\n\"\n"
    "    \"web_file_${index}_end:\\n\"\n"
    "    \".byte 0\\n\"\n"
    "    \".text\\n\");\n"
    "extern const char web_file_${index}[] asm(\"web_file_${index}\");\n"
    "extern const char web_file_${index}_end[] asm(\"web_file_${index}_end\");\n")
  string(APPEND table
    "    {\"${file}\", {web_file_${index}, static_cast<size_t>("
    "web_file_${index}_end - web_file_${index})}},\n")
  math(EXPR index "${index} + 1")
endforeach()
set(text "// Made by embed_web.cmake.\n#include \"server/net/routes.h\"\n\n")
if(files)
  string(APPEND text "${data}\nnamespace reprise::server {\n"
    "std::span<const WebFile> WebFiles() {\n"
    "  static const WebFile files[] = {\n${table}  };\n  return files;\n}\n"
    "}  // namespace reprise::server\n")
else()
  string(APPEND text "namespace reprise::server {\n"
    "std::span<const WebFile> WebFiles() { return {}; }\n"
    "}  // namespace reprise::server\n")
endif()
set(old "")
if(EXISTS "${OUT}")
  file(READ "${OUT}" old)
endif()
if(NOT old STREQUAL text)
  file(WRITE "${OUT}" "${text}")
endif()
