# Device code: every .cu is compiled at build time by NVRTC (no CUDA toolkit) into one image per architecture, and all
# images are embedded into the extension, listed in a generated table (custom_calls/ffi/cuda_images.h).
#
# A .cu may name its architectures in a line "// architectures: sm_80 sm_90 compute_80"; without it the default applies.
# sm_NN gives machine code, compute_NN gives PTX that the driver translates for GPUs without machine code.

set(ONECAT_DEFAULT_ARCHITECTURES "sm_70;sm_80;sm_90;compute_70")

function(_onecat_architectures source result)
  file(STRINGS ${source} line REGEX "^// architectures:" LIMIT_COUNT 1)
  if(line)
    string(REGEX MATCHALL "(sm|compute)_[0-9]+" list "${line}")
    set(${result} ${list} PARENT_SCOPE)
  else()
    set(${result} ${ONECAT_DEFAULT_ARCHITECTURES} PARENT_SCOPE)
  endif()
endfunction()

# Sets ONECAT_IMAGE_TABLE to the generated source that holds the images of the given .cu files.
function(onecat_device_images)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/images)
  set(compiler ${CMAKE_CURRENT_SOURCE_DIR}/custom_calls/tools/nvrtc_compile.py)
  file(GLOB headers CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/custom_calls/*/*.cuh)
  file(MAKE_DIRECTORY ${folder})
  set(images "")
  set(blobs "")
  set(rows "")
  foreach(kernel ${ARGN})
    set(source ${CMAKE_CURRENT_SOURCE_DIR}/${kernel})
    get_filename_component(name ${kernel} NAME_WE)
    _onecat_architectures(${source} architectures)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
    foreach(architecture ${architectures})
      set(image ${folder}/${name}.${architecture})
      add_custom_command(
        OUTPUT ${image}
        COMMAND ${Python_EXECUTABLE} ${compiler} ${source} ${image} ${architecture}
        DEPENDS ${source} ${headers} ${compiler}
        VERBATIM)
      list(APPEND images ${image})
      set(symbol onecat_image_${name}_${architecture})
      string(REGEX REPLACE "^[a-z]+_" "" capability ${architecture})
      if(architecture MATCHES "^compute_")
        set(is_ptx true)
      else()
        set(is_ptx false)
      endif()
      string(APPEND blobs "ONECAT_IMAGE(${symbol}, \"${image}\")\n")
      string(APPEND rows
             "    {\"${name}\", \"${architecture}\", ${capability}, ${is_ptx}, ${symbol}, ${symbol}_end},\n")
    endforeach()
  endforeach()
  set(table ${folder}/cuda_images.cc)
  set(ONECAT_IMAGE_BLOBS "${blobs}")
  set(ONECAT_IMAGE_ROWS "${rows}")
  configure_file(${CMAKE_CURRENT_SOURCE_DIR}/custom_calls/ffi/cuda_images.cc.in ${table} @ONLY)
  set_source_files_properties(${table} PROPERTIES OBJECT_DEPENDS "${images}")
  set(ONECAT_IMAGE_TABLE ${table} PARENT_SCOPE)
endfunction()
