# install.cmake -- what `make install` puts below a prefix: program, library, headers, pages, service.
#
# Nothing is written outside the prefix, and no file that somebody edits is among them. The prefix may be
# chosen, and the folder moved, after building: braid.pc and the CMake package find themselves.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(braid_docs ${CMAKE_INSTALL_DATADIR}/doc/braid)
set(made ${PROJECT_BINARY_DIR}/install)

install(TARGETS braid RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})

# All layers that programs use, in one archive; the server's are not among them.
set(layers base gguf text ops model engine)
list(TRANSFORM layers REPLACE "(.+)" "$<TARGET_OBJECTS:braid_\\1>" OUTPUT_VARIABLE objects)
add_library(braid_library STATIC ${objects})
set_target_properties(braid_library PROPERTIES OUTPUT_NAME braid EXPORT_NAME engine LINKER_LANGUAGE CXX)
target_compile_features(braid_library PUBLIC cxx_std_20)
target_include_directories(braid_library INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/braid>)
target_link_libraries(braid_library INTERFACE Threads::Threads fmt::fmt spdlog::spdlog
  nlohmann_json::nlohmann_json Boost::headers OpenSSL::Crypto PkgConfig::PCRE2 PkgConfig::UTF8PROC
  PkgConfig::HWY PkgConfig::XXHASH)
set(braid_pc_cuda "")
if(braid_cuda)
  find_package(CUDAToolkit REQUIRED)
  target_link_libraries(braid_library INTERFACE CUDA::cudart_static)
  set(braid_pc_cuda " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt")
endif()
install(TARGETS braid_library EXPORT braid_targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})

# The headers that programs include, and all that these include.
function(public_headers result)
  set(found "")
  set(todo ${ARGN})
  while(todo)
    list(POP_FRONT todo header)
    list(APPEND found ${header})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${header})
    file(STRINGS ${PROJECT_SOURCE_DIR}/src/${header} includes REGEX "^ *# *include \"")
    list(TRANSFORM includes REPLACE "^ *# *include \"([^\"]+)\".*" "\\1")
    list(REMOVE_ITEM includes ${found})
    list(APPEND todo ${includes})
    list(REMOVE_DUPLICATES todo)
  endwhile()
  set(${result} ${found} PARENT_SCOPE)
endfunction()
public_headers(headers base/log.h engine/engine.h engine/service.h text/chat.h text/detokenizer.h
  text/stop_strings.h text/tokenizer/tokenizer.h text/tokenizer/vocabulary.h)
foreach(header ${headers})
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES src/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/braid/${folder})
endforeach()

# find_package(braid) and pkg-config.
set(braid_package ${CMAKE_INSTALL_LIBDIR}/cmake/braid)
install(EXPORT braid_targets NAMESPACE braid:: FILE braid-targets.cmake DESTINATION ${braid_package})
configure_package_config_file(cmake/braid-config.cmake.in ${made}/braid-config.cmake
  INSTALL_DESTINATION ${braid_package})
# Before 1.0 every minor version may change the interface.
write_basic_package_version_file(${made}/braid-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${made}/braid-config.cmake ${made}/braid-config-version.cmake DESTINATION ${braid_package})
file(RELATIVE_PATH braid_pc_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" braid_pc_prefix ${braid_pc_prefix})
configure_file(cmake/braid.pc.in ${made}/braid.pc @ONLY)
install(FILES ${made}/braid.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# Manual pages and completions, written by the program.
set(written "")
function(written_by_braid file)
  add_custom_command(OUTPUT ${made}/${file} COMMAND ${CMAKE_COMMAND} -E env --unset=BRAID_LOG
    $<TARGET_FILE:braid> ${ARGN} > ${made}/${file} DEPENDS braid VERBATIM)
  set(written ${written} ${made}/${file} PARENT_SCOPE)
endfunction()
written_by_braid(braid.1 docs man)
foreach(command run serve proxy plan placement bench ppl kv-report inspect quantize compress completion)
  written_by_braid(braid-${command}.1 docs man ${command})
endforeach()
install(FILES ${written} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
foreach(shell bash zsh fish)
  written_by_braid(completion.${shell} completion ${shell})
endforeach()
add_custom_target(braid_pages ALL DEPENDS ${written})
install(FILES ${made}/completion.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME braid)
install(FILES ${made}/completion.zsh DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions RENAME _braid)
install(FILES ${made}/completion.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d
  RENAME braid.fish)

# The unit names the program where it is installed, which is known then only.
install(CODE "
  file(READ \"${PROJECT_SOURCE_DIR}/deploy/systemd/braid.service\" unit)
  string(REPLACE /usr/local/bin/braid \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}/braid\" unit \"\${unit}\")
  file(WRITE \"${made}/braid.service\" \"\${unit}\")")
install(FILES ${made}/braid.service DESTINATION lib/systemd/system)

# License, changes, and the files to start from.
install(FILES LICENSE DESTINATION ${braid_docs})
install(FILES CHANGELOG.md DESTINATION ${braid_docs} OPTIONAL)
install(DIRECTORY examples DESTINATION ${braid_docs})
install(DIRECTORY deploy DESTINATION ${braid_docs} PATTERN Dockerfile EXCLUDE PATTERN braid.service EXCLUDE)
