# The harnesses of what comes from agents and collectors, included by
# tests/collect: over their corpus and fixed mutations as ordinary tests, or
# with libFuzzer where REPRISE_FUZZ is set.
foreach(harness ring control chunk)
  add_executable(fuzz_${harness} ${CMAKE_CURRENT_LIST_DIR}/fuzz_${harness}.cc)
  target_link_libraries(fuzz_${harness} PRIVATE
    reprise_collect reprise_ingest reprise_warnings)
  if(REPRISE_FUZZ)
    target_compile_options(fuzz_${harness} PRIVATE -fsanitize=fuzzer)
    target_link_options(fuzz_${harness} PRIVATE -fsanitize=fuzzer)
  else()
    target_sources(fuzz_${harness} PRIVATE
      ${CMAKE_CURRENT_LIST_DIR}/run_inputs.cc)
    add_test(NAME fuzz.${harness}
      COMMAND fuzz_${harness} --mutations 2000
        ${CMAKE_CURRENT_LIST_DIR}/corpus/${harness})
    set_tests_properties(fuzz.${harness} PROPERTIES TIMEOUT 120)
  endif()
endforeach()
