// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/str_cat.h"
